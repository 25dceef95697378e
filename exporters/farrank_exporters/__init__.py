"""A trained ranker becomes graphs that other runtimes run, with a report of how close they come to it."""
