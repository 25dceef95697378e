"""The HTTP endpoint: it translates requests for the methods that also answer gRPC."""
