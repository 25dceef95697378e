"""The thread that owns the device, and what runs on it."""
