"""The gRPC door: protobuf in, protobuf out."""
