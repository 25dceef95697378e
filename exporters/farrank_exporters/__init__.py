"""Export a trained ranker as graphs for other runtimes, with a report of how close their scores are."""
