"""The stages between wire and device: admission, preparation, queue, worker, collector."""
