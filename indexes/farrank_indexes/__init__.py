"""Indexes of documents: their Lucene index, their manifest, and the tokens and encodings stored with them."""
