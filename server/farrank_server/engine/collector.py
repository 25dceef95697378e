"""Features of chunks come in batch by batch; documents that are complete become scores."""

import time
from collections.abc import Iterator, Sequence

from farrank_rankers.features import Features, batched, stacked
from farrank_runtimes.torch_failures import device_failures
from farrank_server.batching.batcher import Waiting
from farrank_server.engine.cache import EncodedDocument
from farrank_server.engine.job import DocumentWork, Job, Part
from farrank_server.engine.lane import Lane, Ready

# What documents that are scored together may take, padded: token vectors of a long document are megabytes. A
# GPU has the room, and is left idle by runs of one document.
AGGREGATION_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}


def store_features(items: Sequence[Waiting[Part]], rows: Sequence[Features]) -> list[Ready]:
    """Put each input's features in its place; return the documents that can be scored now.

    A row is an item's, (F,) or (S, F…). Guarded by the worker's lock.
    """
    ready: list[Ready] = []
    for item, row in zip(items, rows, strict=True):
        job, document = item.payload.job, item.payload.document
        if document is None:
            ready.extend((job, waited) for waited in job.query_arrived(row))
            continue
        document.features[item.payload.chunk] = row
        document.missing -= 1
        if document.missing == 0:
            ready.extend((job, whole) for whole in job.ready_with(document))
    return ready


def affordable(ready: Sequence[Ready], device: str) -> Iterator[Sequence[Ready]]:
    """Divide documents into runs that AGGREGATION_BYTES hold when padded to the largest, one at least.

    `device` is a runtime's, as cuda:0.
    """
    most = AGGREGATION_BYTES[device.partition(":")[0]]
    start, largest = 0, 0
    for position, (_, document) in enumerate(ready):
        size = _size_bytes(document)
        if position > start and (position - start + 1) * max(largest, size) > most:
            yield ready[start:position]
            start, largest = position, 0
        largest = max(largest, size)
    yield ready[start:]


def aggregate(lane: Lane, ready: Sequence[Ready]) -> None:
    """Score documents of any number of jobs at once; resolve the jobs that this finished.

    Raises: OutOfMemory, DeviceLost.
    """
    started_ns = time.perf_counter_ns()
    # What is put together here is on the device, too, and may fail as the runtime's own work does.
    with device_failures():
        # Cached documents come from host memory, all others from the device.
        device = lane.runtime.capabilities().device
        wholes = [_whole(document).to(device) for _, document in ready]
        features, mask = batched(wholes)
        query = stacked([_query(job) for job, _ in ready]) if lane.is_dual else None
        scores, evidence = lane.runtime.aggregate(features, mask, query)
    elapsed_ns = time.perf_counter_ns() - started_ns
    for job in {job for job, _ in ready}:
        job.device.aggregation_ns += elapsed_ns
    for (job, document), whole, score, chunk_scores in zip(ready, wholes, scores, evidence, strict=True):
        if lane.cache is not None and document.cache_key is not None:
            encoded = EncodedDocument(whole.to("cpu"), document.spans, document.tokens_cut)
            lane.cache.put(document.cache_key, encoded)
        job.score(document, score, chunk_scores)


def _whole(document: DocumentWork) -> Features:
    """All features of a document, (C, …)."""
    if document.whole is not None:
        return document.whole
    return stacked([feature for feature in document.features if feature is not None])


def _size_bytes(document: DocumentWork) -> int:
    if document.whole is not None:
        return document.whole.nbytes
    sizes = [feature.nbytes for feature in document.features if feature is not None]
    return len(sizes) * max(sizes)


def _query(job: Job) -> Features:
    if job.query_features is None:
        raise AssertionError("a dual document was aggregated before its query was encoded")
    return job.query_features
