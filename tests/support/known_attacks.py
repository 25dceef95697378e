"""Named attacks, at sizes that have hurt servers, and a strategy that draws cases of the same steps."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hypothesis import strategies as st

from support import hostile_http as http
from support import hostile_steps as h2
from support.hostile_connection import CHECK

Case: TypeAlias = Sequence[h2.Step]

RERANK, LIST = h2.SERVICE + "Rerank", h2.SERVICE + "ListRankers"


def _many(times: int, share: float) -> int:
    return max(1, round(times * share))


# Attacks by name, as functions of a share of the full size between 0 and 1.
KNOWN: dict[str, Callable[[float], Case]] = {
    "calls, 60,000": lambda share: [h2.Calls(_many(60_000, share), LIST)],
    "streams begun, 60,000": lambda share: [h2.Streams(_many(60_000, share), RERANK)],
    "rapid reset, 60,000": lambda share: [h2.Streams(_many(60_000, share), RERANK, resets=True)],
    "rapid reset of checks, 60,000": lambda share: [h2.Streams(_many(60_000, share), CHECK, resets=True)],
    "rapid reset by one that reads, 60,000": lambda share: (
        [h2.Open(reads=True), h2.Streams(_many(60_000, share), RERANK, resets=True)]
    ),
    "calls of one that reads, 60,000": lambda share: [
        h2.Open(reads=True),
        h2.Calls(_many(60_000, share), LIST),
    ],
    "unread checks, 12,000": lambda share: [h2.Open(0), h2.Calls(_many(12_000, share), CHECK)],
    "unread lists of rankers, 7,000": lambda share: [h2.Open(0), h2.Calls(_many(7_000, share), LIST)],
    "unread reranks, 2,000": lambda share: [h2.Open(0), h2.Calls(_many(2_000, share), RERANK)],
    "unread checks over 40 connections": lambda share: (
        [step for _ in range(40) for step in (h2.Open(0), h2.Calls(_many(300, share), CHECK))]
    ),
    "watches, 5,000": lambda share: (
        [
            step
            for _ in range(_many(25, share))
            for step in (h2.Open(), h2.Calls(_many(200, share), "/grpc.health.v1.Health/Watch"))
        ]
    ),
    "half-sent checks, 900": lambda share: [h2.Streams(_many(900, share), CHECK)],
    "half-sent checks over 20 connections": lambda share: (
        [step for _ in range(20) for step in (h2.Open(), h2.Streams(_many(100, share), CHECK))]
    ),
    "gzip, 256 MiB unpacked": lambda share: [h2.Bombs(4, _many(64, share))],
    "half-sent messages of 1 MB, 200": lambda share: (
        [
            step
            for _ in range(_many(200, share))
            for step in (h2.Open(), h2.Messages(1, claimed=20_000_000, sent=1_000_000))
        ]
    ),
    "CONTINUATION, 256 MB": lambda share: [h2.Continuations(_many(16_000, share), 16_000)],
    "CONTINUATION, empty, 200,000": lambda share: [h2.Continuations(_many(200_000, share), 0)],
    "headers that refer to a table": lambda share: [h2.HeaderBombs(_many(2_000, share))],
    "headers of a method that refer to a table": lambda share: [
        h2.HeaderBombs(_many(2_000, share), method=LIST)
    ],
    "SETTINGS, 200,000": lambda share: [h2.Settings(_many(200_000, share), 4, 65_535)],
    "PING, 200,000": lambda share: [h2.Pings(_many(200_000, share))],
    "WINDOW_UPDATE, 500,000": lambda share: [h2.Streams(1), h2.Windows(_many(500_000, share))],
    "PRIORITY, 500,000": lambda share: [h2.Priorities(_many(500_000, share), 3, 5)],
    "RST_STREAM, 500,000": lambda share: [h2.Streams(1), h2.Resets(_many(500_000, share))],
    "empty DATA, 500,000": lambda share: [h2.Streams(1), h2.Raw(_many(500_000, share), 0, 0, 1, 0)],
    "unknown frames, 500,000": lambda share: [h2.Raw(_many(500_000, share), 0xEE, 0, 0, 0)],
    "HTTP: half headers, 1,100": lambda share: [http.Requests(_many(1_100, share), "head alone", apart=True)],
    "HTTP: bodies of 1 MB half sent, 300": lambda share: [
        http.Bodies(_many(300, share), 2_000_000, 1_000_000)
    ],
    "HTTP: unread answers, 20,000": lambda share: [http.Requests(_many(20_000, share), "health")],
    "HTTP: many headers, 200": lambda share: [http.Requests(_many(200, share), "many headers", apart=True)],
}


def cases(most_times: int) -> st.SearchStrategy[Case]:
    """Draw a few steps. None is repeated more than `most_times`."""
    times = st.sampled_from(sorted({1, 2, 7, max(1, most_times // 10), most_times}))
    method = st.sampled_from(h2.METHODS)
    number = st.one_of(st.sampled_from((0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1)), st.integers(0, 40))
    stream = number.map(lambda each: each % 2**31)
    booleans = st.booleans()
    size = st.one_of(st.integers(0, 40), st.sampled_from((1_000, 16_384, 16_385, 100_000)))
    few = times.map(lambda each: min(each, 40))
    grpc = (
        st.builds(h2.Open, st.sampled_from((None, 0, 1, 2**31 - 1)), booleans),
        st.builds(h2.Streams, times, method, booleans, booleans, st.sampled_from((0, 1, 2, 7, 8, 99))),
        st.builds(h2.Calls, times, method),
        st.builds(
            h2.Messages,
            times,
            method,
            st.sampled_from((0, 0, 1, 2, 255)),
            st.sampled_from((0, 1, 10, 1_000_000, 2**31, 2**32 - 1)),
            st.sampled_from((0, 1, 10, 1_000)),
            st.sampled_from(("", "", "gzip", "deflate", "identity", "rot13")),
            booleans,
        ),
        st.builds(h2.Bombs, st.just(1), st.integers(1, 8), method),
        st.builds(
            h2.Continuations, few, size.map(lambda each: min(each, 16_384)), booleans,
            st.sampled_from((b"\x00\x01a\x01b", b"\x82", b"\xff", b"\x3f\xff\xff\xff\xff\x07", b"\x00")),
        ),
        st.builds(h2.Settings, times, st.integers(0, 9), number),
        st.builds(h2.Pings, times, booleans),
        st.builds(h2.Windows, times, stream, st.sampled_from((0, 1, 2, 65_535, 2**31 - 1))),
        st.builds(h2.Priorities, times, stream, stream),
        st.builds(h2.Resets, times, stream, number),
        st.builds(h2.GoAways, few, stream, number),
        st.builds(h2.Raw, few, st.integers(0, 12), st.integers(0, 255), number, size,
                  st.sampled_from((None, None, 0, 1, 8, 16_385, 2**24 - 1))),
        st.builds(h2.Garbage, st.binary(min_size=1, max_size=60), few),
        st.builds(h2.OddHeaders, few, st.sampled_from(sorted(h2.ODD_FIELDS)), method, booleans),
        st.builds(h2.HeaderBombs, few, st.sampled_from((1, 100, 3_000)), method),
        st.builds(h2.Trailers, few,
                  st.sampled_from(("middle", "at the end", "twice", "after the end", "a call", "none but"))),
        st.builds(h2.Read, st.sampled_from((1, 1_000, 1_000_000))),
        st.just(h2.Leave()),
    )  # fmt: skip
    of_http = (
        st.builds(http.Requests, few, st.sampled_from(sorted(http.REQUESTS)), booleans),
        st.builds(
            http.Bodies,
            few,
            st.sampled_from((1, 100, 100_000, 30_000_000)),
            st.sampled_from((0, 1, 50, 10_000)),
        ),
        st.builds(http.Drips, st.integers(1, 200)),
        st.just(h2.Leave()),
    )
    return st.one_of(
        st.lists(st.one_of(grpc), min_size=1, max_size=6),
        st.lists(st.one_of(grpc), min_size=1, max_size=6),
        st.lists(st.one_of(of_http), min_size=1, max_size=4),
    )
