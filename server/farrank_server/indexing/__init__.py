"""From documents to an index: collections in (`jsonl`, `pydoc_corpus`), a Lucene index out (`build`)."""
