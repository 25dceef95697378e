"""Accuracy of rankers: reranking a run's candidates, the field's measures, and the papers' comparison."""
