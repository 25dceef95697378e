"""Everything online: service, admission, batcher, worker, first stage, metrics."""
