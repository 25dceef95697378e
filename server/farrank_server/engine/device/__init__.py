"""The device thread and everything that runs on it."""
