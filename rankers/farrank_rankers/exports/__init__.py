"""Exports of a ranker: graphs beside its artifact's weights, with all that says what they are worth."""
