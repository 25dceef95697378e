"""docs/explanation/architecture.md names existing files, and its promises hold."""

import itertools
import json
import re
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_cli.main import main
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from farrank_server.wire import few_files
from support import forked
from support.otlp_collector import collecting
from support.traced_call import recording
from support.waiting import until

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"
PAGE = (EXPLANATION / "architecture.md").read_text(encoding="utf-8")
RECORDS = (EXPLANATION / "records-and-threads.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")


# The page's words for the threads of a call, by their names.
THREADS = {
    "MainThread": "event loop",
    "farrank-reader": "tokenizer threads",
    "farrank-device": "device thread",
}

FIGURES = ("farrank_server/metrics.py", "device thread")


def section(title: str, page: str = PAGE) -> str:
    return page.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE + RECORDS)

    assert len(paths) >= 14
    # A policy's file is named relative to its package.
    rooms = (ROOT, ROOT / "server" / "farrank_server", *ROOT.glob("*/"))
    assert [path for path in paths if not any((room / path).exists() for room in rooms)] == []


async def test_the_files_of_a_call_are_those_of_the_page_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # The only file of the server that a timer runs and a call does not.
    monkeypatch.setattr(few_files, "CHECK_EVERY_S", 3600.0)
    rows = re.findall(r"^\| \*\*.*?\| ([a-z ]+) \| (.*) \|$", section("Reading it"), re.MULTILINE)
    listed = [(name, thread) for thread, files in rows for name in re.findall(r"`(\S+)`", files)]
    # Padding and packing run different files, and so do runtimes.
    config = ServerConfig(
        rankers={"minilm": RankerConfig(runtime="torch", packing="padded")},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    texts = iter(f"the river number {number} reaches the sea" for number in itertools.count())

    def request() -> pb.RerankRequest:
        return pb.RerankRequest(query="sea", documents=[pb.Document(text=next(texts)) for _ in range(2)])

    with recording() as recorder:
        async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
            service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
            for _ in range(2):
                await service.Rerank(request(), timeout=60)
            loop, registry = replica.engine.device.loop, replica.metrics.registry
            await until(lambda: registry.get_sample_value("farrank_open_calls", {"kind": "calls"}) == 0)
            await until(lambda: loop.watchdog._rests and not loop.inbox.peek())
            recorder.is_on = True
            await service.Rerank(request(), timeout=60)
            # The device's thread and the counters finish after the answer.
            with suppress(TimeoutError):
                await until(lambda: recorder.entered.keys() >= dict(listed).keys(), 60.0)
            recorder.is_on = False

    assert len(dict(listed)) == len(listed)
    ran = [(name, THREADS[thread]) for name, thread in recorder.entered.items()]
    assert set(ran) == set(listed)
    # The order among files of different threads depends on how the threads are scheduled, and figures are
    # counted at any time.
    ran.remove(FIGURES)
    listed.remove(FIGURES)
    for thread in THREADS.values():
        assert [each for each in ran if each[1] == thread] == [each for each in listed if each[1] == thread]


def test_a_call_has_at_most_six_records_and_they_are_where_the_page_says() -> None:
    records = re.findall(
        r"^\| `(\w+)` in `([\w/.]+)` \|", section("Records of a call", RECORDS), re.MULTILINE
    )
    assert 1 <= len(records) <= 6
    for name, file in records:
        assert re.search(rf"^class {name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_stages_pass_data_by_parameters_and_not_by_context() -> None:
    sources = [each for room in ROOT.glob("*/farrank_*") for each in room.rglob("*.py")]
    using = {each.name for each in sources if "ContextVar" in each.read_text(encoding="utf-8")}
    assert using == {"call_record.py"}  # for the log, which names the call of a line of any module
    reading = {each.name for each in sources if "logged_call" in each.read_text(encoding="utf-8")}
    assert reading == {"call_record.py", "log_output.py"}


def test_the_threads_are_those_of_the_page(tmp_path: Path) -> None:
    collection = tmp_path / "collection.jsonl"
    collection.write_text('{"id": "rivers", "text": "river sea", "impacts": {"river": 3, "sea": 5}}\n')
    assert main(["index", str(collection), "--out", str(tmp_path / "index")]) == 0
    keys = tmp_path / "keys"
    keys.mkdir()
    with collecting() as collector:
        code = "from support.busy_server import print_threads; print_threads()"
        done = forked.run([sys.executable, "-c", code, tmp_path / "index", collector.url, keys])
    assert done.returncode == 0, done.stderr

    names = {re.sub(r"\d+", "N", name) for name in json.loads(done.stdout)}
    listed = set(
        re.findall(r"`([\w-]+(?: \(\w+\))?)`", section("Threads", RECORDS).partition("Libraries also")[0])
    )
    listed -= {"tokenizer_threads"}
    if sys.version_info >= (3, 12):
        listed -= {"asyncio-waitpid-N"}
    assert names == listed


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^\| (?!word|---)([^|]+) \|", GLOSSARY, re.MULTILINE)

    assert 10 <= len(words) <= 15


def test_the_rooms_are_those_of_the_import_contract() -> None:
    drawn = set(re.findall(r"[a-z_]+", section("Rooms").partition("```text")[2].partition("```")[0]))

    rooms = {path.parent.parent.name for path in ROOT.glob("*/*/__init__.py")} - {"tests", "dashboards"}
    assert drawn == rooms
