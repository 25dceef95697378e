"""Lucene in a process of its own: `jvm` starts Java, `frames` is the protocol with the parent."""
