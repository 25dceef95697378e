"""What runs a ranker's encoder and aggregator on a device: one file a runtime, behind one interface."""

from farrank_runtimes.telemetry import switch_off_telemetry

# Here, because no module of this room can load a runtime before.
switch_off_telemetry()
