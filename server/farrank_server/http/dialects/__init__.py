"""The shapes in which clients of other rerankers ask, each translated to the contract and back."""
