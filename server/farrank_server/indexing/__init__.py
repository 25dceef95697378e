"""Builds a Lucene index from documents (`index_builder`), also from the built-in corpus (`pydoc_corpus`)."""
