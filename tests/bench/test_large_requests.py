"""The benchmark of large requests: each kind is answered or refused according to the limits."""

import re
import sys
from pathlib import Path

import pytest

from farrank_bench.large_requests import at_once, main, started
from farrank_bench.served import RANKER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory off /proc")


def test_each_kind_of_request_has_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1"]) == 0
    report = capsys.readouterr().out.partition("# Large requests")[2]
    titles = re.findall(r"^## (.*), [0-9.]+ MiB$", report, re.MULTILINE)
    answers = re.findall(r"longest health check, ms \((\w+)\)", report)
    assert dict(zip(titles, answers, strict=True)) == {
        "gRPC, documents of 1 MB": "OK",
        "HTTP, documents of 1 MB": "200",
        "gRPC, empty documents": "INVALID_ARGUMENT",
        "HTTP, empty documents": "400",
        "gRPC, beyond the limit": "INVALID_ARGUMENT",
        "gRPC, twice the limit": "RESOURCE_EXHAUSTED",
        "HTTP, twice the limit": "413",
    }


@pytest.mark.parametrize(
    ("endpoint", "ranker", "answers"), [("HTTP", "none", "404: 3"), ("gRPC", RANKER, "OK: 3")]
)
def test_requests_at_once_are_measured_with_another_caller(
    tmp_path: Path, endpoint: str, ranker: str, answers: str
) -> None:
    rows = {row.what: row for row in at_once(started(tmp_path), endpoint, 3, 200_000, 1, ranker)}
    assert rows["answers, all rounds"].measured == answers
    assert rows["failed calls of the other caller"].reached
    assert float(rows["ratio of the medians"].measured.partition(" ")[0]) > 0
