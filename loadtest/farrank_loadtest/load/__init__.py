"""Sending calls: on a schedule that waits for nobody (open loop), or by callers that wait (closed loop)."""
