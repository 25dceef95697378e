"""From documents to a Lucene index (`index_builder`); the embedded corpus (`pydoc_corpus`)."""
