"""Backbones that read streams, each on the weights of the padded one."""
