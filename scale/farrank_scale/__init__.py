"""Farrank's replicas on a Ray cluster: Ray Serve starts, balances, drains and counts them."""
