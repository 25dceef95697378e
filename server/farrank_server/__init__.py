"""Everything online: service, admission, batcher, worker, runtimes, first stage, metrics."""
