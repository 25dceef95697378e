"""What lies beside a Lucene index: its manifest, and what is computed once of each document."""
