"""Package `farrank.v1`: the modules compiled from `rerank.proto` and `admin.proto`."""
