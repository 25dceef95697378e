"""Queues, slots, threads and rooms that callers share fairly."""
