"""Telemetry of single calls for operators: ids, log lines, traces."""
