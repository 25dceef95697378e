"""Rankers in the caller's own process, for notebooks and batch jobs."""
