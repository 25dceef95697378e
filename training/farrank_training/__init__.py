"""Train a ranker on queries, documents and judgements; it is served and exported as any other ranker."""
