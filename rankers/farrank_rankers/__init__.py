"""The computation of a score: tokens, chunks, encoder inputs, features, score.

Importing this package does not import torch, so that a process that only reads text starts fast. Models are
in `farrank_rankers.ranker` and `farrank_rankers.families`; `farrank_rankers.files.open` opens both halves.
"""
