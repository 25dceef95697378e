"""The order in which a GPU gets work and is awaited, tested with streams and events that only record."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.features import Features
from farrank_rankers.packed.stream import TokenStream
from farrank_runtimes import cuda_queue
from farrank_runtimes.cuda_queue import ALIGNED, CudaFeed, DeviceStreams, Stage, handed_over, on_side_stream
from support.packings import packing_of

CPU = torch.device("cpu")


@dataclass
class Diary:
    """The events in their order, and the current stream."""

    lines: list[str] = field(default_factory=list)
    current: str = "caller"
    events: int = 0


@dataclass
class NotedStream:
    diary: Diary
    name: str

    def wait_stream(self, other: "NotedStream") -> None:
        self.diary.lines.append(f"{self.name} waits for {other.name}")


class NotedEvent:
    """Records are a millisecond apart."""

    def __init__(self, diary: Diary) -> None:
        self.diary, self.name, self.at_ms = diary, "event", 0.0

    def record(self, stream: NotedStream | None = None) -> None:
        self.diary.events += 1
        self.name, self.at_ms = f"event {self.diary.events}", float(self.diary.events)
        self.diary.lines.append(f"{self.name} on {stream.name if stream else self.diary.current}")

    def synchronize(self) -> None:
        self.diary.lines.append(f"host waits for {self.name}")

    def elapsed_time(self, end: "NotedEvent") -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def diary(monkeypatch: pytest.MonkeyPatch) -> Diary:
    """Replace CUDA's streams by recording ones."""
    diary = Diary()
    streams = DeviceStreams(
        *(NotedStream(diary, name) for name in ("encoding", "copies", "aggregation"))  # type: ignore[arg-type]
    )

    @contextmanager
    def on(stream: NotedStream) -> Iterator[None]:
        before, diary.current = diary.current, stream.name
        try:
            yield
        finally:
            diary.current = before

    monkeypatch.setattr(cuda_queue, "streams_of", lambda device: streams)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: diary.lines.append("host waits for all"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: NotedStream(diary, diary.current))
    monkeypatch.setattr(torch.cuda, "Event", lambda **options: NotedEvent(diary))
    return diary


def encoded(diary: Diary | None = None) -> Callable[[TokenStream], Features]:
    """Encode an input as its first id, and record the stream."""

    def encode(stream: TokenStream) -> Features:
        if diary is not None:
            diary.lines.append(f"encoded on {diary.current}")
        return Features(stream.first(stream.input_ids[:, None].float()))

    return encode


def test_no_wait_happens_before_rows_are_requested(diary: Diary) -> None:
    feed = CudaFeed(CPU)
    assert diary.lines == ["host waits for all"]
    diary.lines.clear()
    first = feed.begin(packing_of([3, 4]), encoded(diary))
    second = feed.begin(packing_of([5, 1, 2]), encoded(diary))
    batch = [
        "encoding waits for copies",
        "event {} on encoding",
        "encoded on encoding",
        "event {} on encoding",
    ]
    lines = [line.format(number) for line, number in zip(batch * 2, [0, 1, 0, 2, 0, 3, 0, 4], strict=True)]
    assert diary.lines == lines
    for encoding, packing, end in ((first, packing_of([3, 4]), 2), (second, packing_of([5, 1, 2]), 4)):
        rows = [row.vectors for row in encoding.rows()]
        wanted = packing.tokens[0, packing.offsets[:-1], None].astype(np.float32)
        assert np.array_equal(torch.stack(rows).numpy(), wanted)
        assert diary.lines[-1] == f"host waits for event {end}"
        assert encoding.device_s() == pytest.approx(1e-3)


def test_a_third_batch_waits_for_the_first_ones_end_and_for_no_other(diary: Diary) -> None:
    feed = CudaFeed(CPU)
    for _ in range(2):
        feed.begin(packing_of([3]), encoded())
    diary.lines.clear()
    for _ in range(3):
        feed.begin(packing_of([3]), encoded())
    waits = [line for line in diary.lines if line.startswith("host waits")]
    assert waits == [f"host waits for event {end}" for end in (2, 4, 6)]
    assert diary.lines[0] == waits[0]


def test_the_stage_of_a_batch_that_failed_is_waited_for(diary: Diary) -> None:
    def fails(stream: TokenStream) -> Features:
        raise torch.OutOfMemoryError("CUDA out of memory")

    feed = CudaFeed(CPU)
    with pytest.raises(torch.OutOfMemoryError):
        feed.begin(packing_of([3]), fails)
    assert diary.lines[-1] == "event 2 on encoding"
    feed.begin(packing_of([3]), encoded())
    feed.begin(packing_of([3]), encoded())
    assert "host waits for event 2" in diary.lines


def test_aggregators_run_between_what_the_caller_did_and_does(diary: Diary) -> None:
    with on_side_stream(torch.device("cuda:0")):
        assert diary.current == "aggregation"
    assert diary.current == "caller"
    assert diary.lines == ["aggregation waits for caller", "caller waits for aggregation"]
    with pytest.raises(KeyError), on_side_stream(torch.device("cuda:0")):
        raise KeyError
    assert diary.lines[2:] == diary.lines[:2]
    with on_side_stream(CPU):
        assert diary.current == "caller"


def test_features_are_handed_over_to_the_stream_that_reads_them(diary: Diary) -> None:
    told: list[tuple[str, str]] = []

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def record_stream(self, stream: NotedStream) -> None:
            told.append((self.name, stream.name))

    features = Features(Noted("vectors"), Noted("roles"))  # type: ignore[arg-type]
    handed_over(features, torch.device("cuda:0"))
    assert told == [("vectors", "caller"), ("roles", "caller")]
    handed_over(Features(torch.zeros(1)), CPU)


@given(st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=40), min_size=1, max_size=5))
def test_batches_arrive_as_they_were_packed(batches: list[list[int]]) -> None:
    stage = Stage(CPU)
    for seed, lengths in enumerate(batches):
        packing = packing_of(lengths, seed)
        tokens, offsets = stage.upload(packing)
        assert (tokens.dtype, offsets.dtype) == (torch.int32, torch.int32)
        assert np.array_equal(tokens.numpy(), packing.tokens)
        assert np.array_equal(offsets.numpy(), packing.offsets)
        # Each row is complete and starts where a kernel's wide reads begin.
        starts = [row.data_ptr() for row in tokens] + [offsets.data_ptr()]
        assert {(start - starts[-1]) % (4 * ALIGNED) for start in starts} == {0}
        assert all(row.is_contiguous() for row in [*tokens, offsets])


def test_room_is_kept_for_the_next_batch() -> None:
    stage = Stage(CPU)
    large, _ = stage.upload(packing_of([500, 400]))
    small, _ = stage.upload(packing_of([3]))
    again, _ = stage.upload(packing_of([500, 400]))
    assert large.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    assert small.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    larger, _ = stage.upload(packing_of([5000]))
    assert larger.untyped_storage().nbytes() < 4 * 2 * 5 * 5200


def test_room_that_cannot_be_had_leaves_the_stage_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, packing = Stage(CPU), packing_of([5, 7])
    stage.upload(packing)
    allocate, left = torch.empty, [1]

    def empty(*size: int, **options: object) -> torch.Tensor:
        if not left.pop():
            raise torch.OutOfMemoryError("no more")
        left.append(0)
        return allocate(*size, **options)  # type: ignore[call-overload,no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        with pytest.raises(torch.OutOfMemoryError):
            stage.upload(packing_of([5000]))
    assert np.array_equal(stage.upload(packing_of([5000]))[0].numpy(), packing_of([5000]).tokens)
