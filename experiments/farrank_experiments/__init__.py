"""The papers' findings measured anew, at a size for two cores: `python -m farrank_experiments`."""
