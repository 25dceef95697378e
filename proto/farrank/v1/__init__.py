"""Package `farrank.v1`: `rerank_pb2` and `rerank_pb2_grpc`, compiled from `rerank.proto`."""
