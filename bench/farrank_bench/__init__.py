"""`make bench`: the server compared with its runtime and under overload, and exports compared with peers."""

import farrank_runtimes  # noqa: F401  # before torch, so that OpenMP's threads wait as they do in a server
