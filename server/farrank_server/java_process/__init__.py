"""A child process that runs Java: `jvm` starts Java, and `frames` is the protocol with the parent."""
