"""Features of chunks come in batch by batch; documents that are complete become scores."""

import time
from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from farrank_server.batching.batcher import Waiting
from farrank_server.engine.cache import EncodedDocument
from farrank_server.engine.job import DocumentWork, Job, Part
from farrank_server.engine.lane import Lane, Ready


def store_features(items: Sequence[Waiting[Part]], features: torch.Tensor) -> list[Ready]:
    """Put each input's features in its place; return the documents that can be scored now.

    Shapes: features (P, …), a row an item. Guarded by the worker's lock.
    """
    ready: list[Ready] = []
    for item, row in zip(items, features, strict=True):
        job, document = item.payload.job, item.payload.document
        if document is None:
            ready.extend((job, waited) for waited in job.query_arrived(row))
            continue
        document.features[item.payload.chunk] = row
        document.missing -= 1
        if document.missing == 0:
            ready.extend((job, whole) for whole in job.ready_with(document))
    return ready


def aggregate(lane: Lane, ready: Sequence[Ready]) -> None:
    """Score documents of any number of jobs at once; resolve the jobs that this finished.

    Raises: OutOfMemory, DeviceLost.
    """
    started_ns = time.perf_counter_ns()
    # Cached documents come from host memory, all others from the device.
    device = lane.runtime.capabilities().device
    rows = [_whole(document).to(device) for _, document in ready]
    features, mask = _padded(rows)
    queries = torch.stack([_query(job) for job, _ in ready]) if lane.is_dual else None
    scores, evidence = lane.runtime.aggregate(features, mask, queries)
    elapsed_ns = time.perf_counter_ns() - started_ns
    for job in {job for job, _ in ready}:
        job.device.aggregation_ns += elapsed_ns
    for (job, document), row, score, chunk_scores in zip(ready, rows, scores, evidence, strict=True):
        if lane.cache is not None and document.cache_key is not None:
            encoded = EncodedDocument(row.cpu(), document.spans, document.tokens_cut)
            lane.cache.put(document.cache_key, encoded)
        job.score(document, score, chunk_scores)


def _whole(document: DocumentWork) -> torch.Tensor:
    """All features of a document, (C, …)."""
    if document.whole is not None:
        return document.whole
    return torch.stack([feature for feature in document.features if feature is not None])


def _padded(rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Documents of (C, …) each as features (D, C, …) and chunk mask (D, C)."""
    counts = [len(row) for row in rows]
    if min(counts) == max(counts):
        # Above all the single document of a small call, whose caller waits for every operation here.
        return torch.stack(list(rows)), torch.ones(len(rows), counts[0], dtype=torch.bool)
    mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
    return pad_sequence(list(rows), batch_first=True), mask


def _query(job: Job) -> torch.Tensor:
    if job.query_features is None:
        raise AssertionError("a dual document was aggregated before its query was encoded")
    return job.query_features
