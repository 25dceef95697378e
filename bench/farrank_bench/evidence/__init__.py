"""Benchmarks of sentences as evidence."""
