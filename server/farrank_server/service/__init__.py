"""The methods of `rerank.proto` and the errors of their calls, for both endpoints."""
