"""The gRPC door: protobuf in, protobuf out. All it does after parsing is callable from another door."""
