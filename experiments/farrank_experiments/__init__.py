"""Reproduce the papers' findings at a size for two cores: `python -m farrank_experiments`."""
