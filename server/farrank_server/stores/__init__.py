"""Files stored with a Lucene index: its manifest, and data computed once for each document."""
