"""`make bench`: what the server adds to its runtime's time, under overload too, and exports beside peers."""

import farrank_runtimes  # noqa: F401  # before torch, whose threads then wait for each other as a server's do
