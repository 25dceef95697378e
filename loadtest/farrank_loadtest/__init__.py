"""Load and accuracy sweeps against rerank servers, ours and others."""
