"""What runs a ranker's encoder and aggregator on a device: one file a runtime, behind one interface."""
