"""`make bench`: what the server adds to its runtime's time, and what it does when offered too much."""
