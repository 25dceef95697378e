"""Adaptive depth: a ranker reads the most promising chunks of whole documents, in rounds, within a budget."""
