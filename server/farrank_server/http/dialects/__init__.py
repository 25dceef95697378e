"""The APIs of other rerankers, each translated to the contract and back."""
