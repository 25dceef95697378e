"""What an operator is told of single calls: ids, lines in the log, traces."""
