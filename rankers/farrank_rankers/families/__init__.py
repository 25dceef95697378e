"""The models, one file per family; `farrank_rankers.family` lists them by name."""
