"""Who scores the same pairs: Farrank's server and its runtime alone, sentence-transformers, Infinity."""
