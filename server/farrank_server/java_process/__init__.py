"""A child process that runs Java: how it is started (`jvm`) and how its parent talks to it (`frames`)."""
