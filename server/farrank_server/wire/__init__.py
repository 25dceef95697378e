"""The gRPC endpoint: takes requests and returns answers as protobuf."""
