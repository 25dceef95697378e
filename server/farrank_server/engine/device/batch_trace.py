"""What a traced call is told of the batches that its inputs were in."""

from collections import defaultdict

from farrank_server.engine.call import ActiveCall, QueuedInput
from farrank_server.engine.device.batch_in_flight import BatchInFlight
from farrank_server.telemetry.call_record import Facts, TracedBatch


def note_batch(batch: BatchInFlight, start_s: float) -> None:
    """Note, for the calls that are traced, how long their inputs waited for a batch and what it took.

    `start_s` is when the device began it.
    """
    traced = defaultdict[ActiveCall, list[QueuedInput]](list)
    for item in batch.items:
        if item.call.call.record.trace is not None:
            traced[item.call].append(item)
    if not traced:
        return
    ranker, end_s = batch.queue.ranker, batch.done_s or start_s
    ran = {"ranker": ranker.name, "runtime": ranker.capabilities.runtime}
    whole: Facts = {
        **ran,
        "device": ranker.capabilities.device,
        "precision": ranker.capabilities.precision,
        "inputs": len(batch.items),
        "calls": len({item.call for item in batch.items}),
        "tokens": sum(item.tokens for item in batch.items),
        "padded_tokens": sum(batch.positions),
    }
    traces = [trace for call in traced if (trace := call.call.record.trace) is not None]
    told = TracedBatch(start_s, end_s, whole, traces)
    for trace, items in zip(traces, traced.values(), strict=True):
        trace.step("queue", min(start_s, *(item.enqueued_s for item in items)), start_s, ran)
        its: Facts = {**ran, "inputs": len(items), "tokens": sum(item.tokens for item in items)}
        trace.step("device", start_s, end_s, its, told)
