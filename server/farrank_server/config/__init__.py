"""The configuration: its tree (`schema`), and how files, the environment and flags set it (`sources`)."""
