"""How well rankers rank: reranking a run's candidates, the field's measures, and the papers' comparison."""
