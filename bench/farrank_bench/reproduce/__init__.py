"""Tables of quality, latency and size over real collections, made by one command."""
