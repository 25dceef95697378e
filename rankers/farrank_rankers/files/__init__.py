"""Models on disk: found, recognised, opened and saved."""
