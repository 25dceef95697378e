"""`make bench`: what the server adds to its runtime's time, under overload too, and exports beside peers."""
