"""The rankers that a replica has loaded."""
