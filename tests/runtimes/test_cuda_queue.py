"""The order in which a GPU is told what to do, and waited for: streams and events that only keep a diary."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from farrank_rankers.features import Features
from farrank_rankers.packed.stream import TokenStream
from farrank_runtimes import cuda_queue
from farrank_runtimes.cuda_queue import CudaFeed, DeviceStreams, beside, handed_over
from support.packings import packing_of

CPU = torch.device("cpu")


@dataclass
class Diary:
    """What happened, in its order, and the stream that is current."""

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
    """Records happen a millisecond after one another."""

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
    """Put noted streams in the place of CUDA's."""
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
    """Encode an input as its first id, and say where."""

    def encode(stream: TokenStream) -> Features:
        if diary is not None:
            diary.lines.append(f"encoded on {diary.current}")
        return Features(stream.first(stream.input_ids[:, None].float()))

    return encode


def test_nobody_waits_before_rows_are_asked_for(diary: Diary) -> None:
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


def test_a_third_batch_waits_for_the_firsts_end(diary: Diary) -> None:
    feed = CudaFeed(CPU)
    for _ in range(2):
        feed.begin(packing_of([3]), encoded())
    diary.lines.clear()
    feed.begin(packing_of([3]), encoded())
    assert diary.lines[0] == "host waits for event 2"


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
    with beside(torch.device("cuda:0")):
        assert diary.current == "aggregation"
    assert diary.current == "caller"
    assert diary.lines == ["aggregation waits for caller", "caller waits for aggregation"]
    with pytest.raises(KeyError), beside(torch.device("cuda:0")):
        raise KeyError
    assert diary.lines[2:] == diary.lines[:2]
    with beside(CPU):
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
