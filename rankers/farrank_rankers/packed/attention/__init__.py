"""Attention within the inputs of a stream."""
