"""The operator's endpoint, which changes the rankers of a server while it serves."""
