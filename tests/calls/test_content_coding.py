"""The callers that take gzip, by RFC 9110, and the bytes that they get."""

import gzip

import pytest

from farrank_calls.content_coding import accepts_gzip, packed


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("", False),
        ("identity", False),
        ("gzip", True),
        ("GZip", True),
        ("x-gzip", True),
        ("deflate, gzip;q=1.0, br", True),
        ("br;q=1,\tgzip ; q=0.001", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
        ("*, gzip;Q=0", False),
        ("*", True),
        ("*;q=0", False),
        ("*;q=0, gzip", True),
        ("identity;q=0.5, *;q=0.1", True),
        ("gzip;q=-1", False),
        ("gzip;q=high", False),
        ("gzip;level=1", False),
        ("notgzip, gzipped", False),
        (",,gzip,", True),
    ],
)
def test_a_caller_takes_gzip_if_its_header_allows_it(header: str, accepts: bool) -> None:
    assert accepts_gzip(header) is accepts


@pytest.mark.parametrize("level", [1, 9])
def test_a_packed_body_is_the_same_each_time(level: int) -> None:
    body = "the river rises 🏔️ ".encode() * 1000
    assert gzip.decompress(packed(body, level)) == body
    assert packed(body, level) == packed(body, level)
    assert len(packed(body, level)) < len(body) / 50
