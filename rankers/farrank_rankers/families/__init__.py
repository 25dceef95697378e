"""The models, one file a family; `registry` finds them by name."""
