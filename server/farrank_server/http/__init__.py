"""The HTTP door: what clients say is translated, and the methods answer that answer through gRPC."""
