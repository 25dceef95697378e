"""Benchmarks of several replicas together, on devices that sleep instead of computing."""
