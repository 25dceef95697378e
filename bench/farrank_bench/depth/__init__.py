"""How much of a document a ranker must read: chunk scores are cached, and ways to choose chunks replayed."""
