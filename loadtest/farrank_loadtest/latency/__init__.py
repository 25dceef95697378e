"""A server's latency under load, and the highest load at which it meets an objective."""
