"""The subcommands, one a file, each with `configure(parser)` and `run(args) -> exit code`."""
