"""The command `farrank`: serve, index, rerank, search, rankers."""
