"""Queries, documents and judgements become a trained ranker, which is served and exported as any other."""
