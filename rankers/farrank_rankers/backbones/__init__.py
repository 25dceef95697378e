"""Backbones that transformers does not have, written out from their papers and published code."""
