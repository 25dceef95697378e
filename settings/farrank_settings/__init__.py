"""Settings: dataclasses that check their values, read from a file, the environment and flags."""
