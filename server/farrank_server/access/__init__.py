"""Access control: the file of API keys, the rights of each key, and its rates."""
