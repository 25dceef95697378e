"""Encoders on streams: the tokens of all inputs end to end, without padding."""
