"""The configuration.

Its tree (`schema`), and how it is read from files, the environment and flags (`sources`, `values`).
"""
