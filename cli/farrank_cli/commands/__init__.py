"""The subcommands, one per file, each with `configure(parser)` and `run(args) -> exit code`."""
