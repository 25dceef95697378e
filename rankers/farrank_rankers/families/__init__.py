"""The models, one file a family; `farrank_rankers.family` lists them by name."""
