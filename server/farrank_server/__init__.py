"""The online server: service, admission, batching, device, first stage, metrics."""
