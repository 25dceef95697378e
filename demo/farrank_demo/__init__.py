"""A demonstration: Lucene finds, Farrank reranks, and judged questions measure the result."""
