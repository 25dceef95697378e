"""Load and accuracy tests of rerank servers, Farrank and others."""
