"""What many replicas do together, on devices that sleep instead of computing."""
