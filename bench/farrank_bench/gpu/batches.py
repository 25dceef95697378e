"""Inputs in their order as batches of at most so many positions."""

from collections.abc import Iterator, Sequence

from farrank_rankers.tokens import EncoderInput

Batch = list[EncoderInput]


def batches_in_order(inputs: Sequence[EncoderInput], max_tokens: int, *, padded: bool) -> Iterator[Batch]:
    """Divide inputs, each batch as full as it can be, or of one input.

    Padded, an input takes as many positions as the longest of its batch.
    """
    batch: Batch = []
    longest = total = 0
    for item in inputs:
        widest = max(longest, item.tokens)
        positions = widest * (len(batch) + 1) if padded else total + item.tokens
        if batch and positions > max_tokens:
            yield batch
            batch, widest, total = [], item.tokens, 0
        batch.append(item)
        longest, total = widest, total + item.tokens
    if batch:
        yield batch
