"""Exports of a ranker: graphs next to its artifact's weights, with a record of their accuracy and origin."""
