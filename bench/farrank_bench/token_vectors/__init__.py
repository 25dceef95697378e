"""Token vectors: the losses of their codecs, the time to compare them, and searches that read them."""
