"""Indexes are reloaded under load, over real sockets: no call is dropped, and none mixes old and new."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_first_stage import lucene_host
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import IndexOptions, Store, change_index
from farrank_indexes.token_store import TokenStoreBuilder, key_of
from farrank_rankers.files.open import open_reader
from farrank_rankers.tokenizer import TokenizerFiles
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from farrank_settings.errors import ConfigError
from support.engine_bench import until
from support.kept_index import kept_index

TEXTS = {f"d{n}": f"the river number{n} rises in the mountains " * (n + 1) for n in range(6)}
ASKED = pb.SearchAndRerankRequest(query="river", options=pb.RerankOptions(return_texts=True))


@pytest.fixture(scope="module")
def stores(tiny_rankers: dict[str, Path]) -> list[Store]:
    return [TokenStoreBuilder(open_reader(str(tiny_rankers["maxp"])).tokenizer)]


@pytest.fixture(scope="module")
def made(stores: list[Store], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_index(tmp_path_factory.mktemp("reloaded") / "index", TEXTS, stores)


@pytest.fixture
def index(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "index")
    return tmp_path / "index"


def add(index: Path, stores: list[Store], *names: str) -> None:
    change_index(
        index, [IndexDocument(name, f"a river called {name}") for name in names], [], IndexOptions(stores)
    )


def configured(tiny_rankers: dict[str, Path], index: Path) -> ServerConfig:
    return ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None),
        first_stage=FirstStageConfig(indexes={"it": Bm25Config(index)}),
    )


async def test_no_call_is_dropped_while_indexes_are_reloaded(
    tiny_rankers: dict[str, Path], index: Path, stores: list[Store]
) -> None:
    async with (
        Replica(configured(tiny_rankers, index)) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        is_over = False
        found: list[Any] = []

        async def caller() -> None:
            while not is_over:
                found.append(await stub.SearchAndRerank(ASKED, timeout=120))

        callers = [asyncio.ensure_future(caller()) for _ in range(3)]
        with replica.indexes.held() as first:
            await asyncio.to_thread(add, index, stores, "new")
            before = first.first_stages.lucene.process_id
            await replica.indexes.reload()
            # A call in flight keeps the indexes that it began with.
            assert len(await first.first_stages.search("it", "river", 10, 30.0)) == len(TEXTS)
        await until(lambda: first.first_stages.lucene.process_id is None)
        seen = len(found)
        await until(lambda: len(found) > seen + 20)
        is_over = True
        await asyncio.gather(*callers)

        sizes = [len(each.results) for each in found]
        assert set(sizes) == {len(TEXTS), len(TEXTS) + 1}
        assert sizes == sorted(sizes)
        for each in found:
            assert each.usage.stored_documents == len(each.results)
            assert all(result.text for result in each.results)
        listed = await stub.ListRankers(pb.ListRankersRequest())
        assert [(each.documents, each.generation) for each in listed.indexes] == [(len(TEXTS) + 1, 1)]
        with replica.indexes.held() as second:
            assert second.first_stages.lucene.process_id not in (None, before)
        read = replica.metrics.registry.get_sample_value
        assert read("farrank_index_generation", {"index": "it"}) == 1
        assert read("farrank_index_reloads_total", {"outcome": "done"}) == 1


# By thread: the files that it has opened or looked for since the observation began.
TOUCHED: dict[int, list[str]] = {}


def _note_file(event: str, details: tuple[object, ...]) -> None:
    # A number is a pipe of the search process.
    if event in ("open", "os.listdir", "os.scandir", "glob.glob") and not isinstance(details[0], int):
        touched = TOUCHED.get(threading.get_ident())
        if touched is not None:
            touched.append(f"{event} {details[0]}")


@contextmanager
def file_work_of_this_thread() -> Iterator[list[str]]:
    """Record the files that this thread opens, and the folders that it lists."""
    touched = TOUCHED[threading.get_ident()] = []
    try:
        yield touched
    finally:
        del TOUCHED[threading.get_ident()]


async def test_a_reload_leaves_the_event_loop_to_calls(
    tiny_rankers: dict[str, Path], index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.addaudithook(_note_file)
    rankers = {name: RankerConfig(str(tiny_rankers[name])) for name in ("maxp", "biencoder")}
    async with Replica(replace(configured(tiny_rankers, index), rankers=rankers)) as replica:

        def read_again(files: TokenizerFiles) -> tuple[object, str]:
            raise AssertionError("a reload reads no tokenizer again")

        monkeypatch.setattr(TokenizerFiles, "configured", read_again)
        with file_work_of_this_thread() as touched:
            await replica.reload()
        assert touched == []
        with replica.indexes.held() as opened:
            sources = opened.sources("it")
            assert sources is not None
            assert set(sources.tokens_for) == set(rankers)


async def test_health_tells_of_the_process_that_calls_search(
    tiny_rankers: dict[str, Path], index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Replica(configured(tiny_rankers, index)) as replica:
        read = replica.metrics.registry.get_sample_value
        # An ended process is not restarted for a while: a reload brings the next one.
        monkeypatch.setattr(lucene_host, "restart_delay_s", lambda failures: 60.0)
        with replica.indexes.held() as first:
            killed = first.first_stages.lucene.process_id
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            await until(lambda: read("farrank_search_process_down") == 1)
            await replica.indexes.reload()
            assert read("farrank_search_process_down") == 0
        monkeypatch.undo()
        with replica.indexes.held() as second:
            old = second.first_stages.lucene.process_id
            assert old is not None
            await replica.indexes.reload()
            # A call that began with it keeps it, and it may still end.
            os.kill(old, signal.SIGKILL)
            await until(lambda: second.first_stages.lucene.process_id != old)
            assert read("farrank_search_process_down") == 0
            assert read("farrank_search_process_ends_total", {"reason": "ended"}) == 1
        with replica.indexes.held() as third:
            assert len(await third.first_stages.search("it", "river", 10, 30.0)) == len(TEXTS)


async def test_files_of_old_indexes_are_let_go(
    tiny_rankers: dict[str, Path], index: Path, stores: list[Store]
) -> None:
    def opened() -> list[str]:
        links = []
        for each in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                links.append(os.readlink(each))
        return [link for link in links if str(index.parent) in link]

    async with Replica(configured(tiny_rankers, index)) as replica:
        expected = [first := len(opened())]
        assert first > 0
        for generation in (1, 2):
            await asyncio.to_thread(add, index, stores, f"new{generation}")
            await replica.indexes.reload()
            # Each change adds a part with the same number of files.
            expected.append(first * (generation + 1))
            await until(lambda: len(opened()) == expected[-1])
            assert not [line for line in opened() if line.endswith("(deleted)")]


async def test_a_reload_that_fails_leaves_the_old_indexes(
    tiny_rankers: dict[str, Path], index: Path, tmp_path: Path
) -> None:
    async with (
        Replica(configured(tiny_rankers, index)) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        aside = tmp_path / "aside"
        os.rename(index, aside)
        with pytest.raises(ConfigError, match="there is no Lucene index here"):
            await replica.indexes.reload()
        os.rename(aside, index)
        tokens = key_of(open_reader(str(tiny_rankers["maxp"])).tokenizer)
        (index / tokens / "part-000000000000" / "characters.u32").unlink()
        with pytest.raises(ConfigError, match=r"characters\.u32: is damaged \(it is missing\)"):
            await replica.indexes.reload()
        answer = await stub.SearchAndRerank(ASKED, timeout=120)
        assert len(answer.results) == answer.usage.stored_documents == len(TEXTS)
        read = replica.metrics.registry.get_sample_value
        assert read("farrank_index_reloads_total", {"outcome": "failed"}) == 2
        assert read("farrank_index_reloads_total", {"outcome": "done"}) == 0


async def test_stores_of_an_index_that_was_replaced_are_not_read_with_the_new_one(
    tiny_rankers: dict[str, Path], index: Path, stores: list[Store], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        Replica(configured(tiny_rankers, index)) as replica,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        with replica.indexes.held() as opened:
            lucene = opened.first_stages.lucene
            before = lucene.process_id
            assert before is not None
            await asyncio.to_thread(add, index, stores, "new")
            os.kill(before, signal.SIGKILL)
            await until(lambda: lucene.process_id not in (None, before))
        answer = await stub.SearchAndRerank(ASKED, timeout=120)
        assert (len(answer.results), answer.usage.stored_documents) == (len(TEXTS) + 1, 0)
        named = [pb.Document(id=doc_id, index="it") for doc_id in (*TEXTS, "new")]
        by_id = await stub.Rerank(pb.RerankRequest(query="river", documents=named), timeout=120)
        assert by_id.usage.stored_documents == 0
        assert {each.id: each.score for each in by_id.results} == {
            each.id: each.score for each in answer.results
        }
        assert [each.message for each in caplog.records if "was replaced" in each.message]

        await replica.indexes.reload()
        again = await stub.SearchAndRerank(ASKED, timeout=120)
        assert [(each.id, each.score) for each in again.results] == [
            (each.id, each.score) for each in answer.results
        ]
        assert again.usage.stored_documents == len(TEXTS) + 1


def farrank(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farrank_cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_farrank_reload_says_how_it_went(
    tiny_rankers: dict[str, Path], index: Path, stores: list[Store], tmp_path: Path
) -> None:
    pid_file = tmp_path / "farrank.pid"
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", f"--index=it={index}", f"--pid-file={pid_file}"]
    reload = ("reload", "--pid-file", pid_file)
    with spawned_server(arguments) as server, Client(server.address) as client:
        pid = int(pid_file.read_text().splitlines()[0])
        add(index, stores, "new")
        assert len(client.search_and_rerank("river").results) == len(TEXTS)

        done = farrank(*reload)
        assert (done.returncode, done.stdout, done.stderr) == (0, "reloaded\n", "")
        assert len(client.search_and_rerank("river").results) == len(TEXTS) + 1

        index.rename(tmp_path / "aside")
        failed = farrank(*reload)
        assert failed.returncode == 1
        assert failed.stderr.startswith("farrank: the server keeps what it could not reload: first_stage.")
        assert "there is no Lucene index here" in failed.stderr
        assert len(client.search_and_rerank("river").results) == len(TEXTS) + 1

        (tmp_path / "aside").rename(index)
        second = farrank("serve", *arguments, "--port=0", "--metrics-port=none")
        assert (second.returncode, second.stdout) == (2, "")
        assert second.stderr == f"farrank serve: --pid-file: another running server uses {pid_file}\n"
        assert int(pid_file.read_text().splitlines()[0]) == pid
    assert not pid_file.exists()
    gone = farrank(*reload)
    assert gone.returncode == 3
    pid_file.write_text(f"{os.getpid()}\n{{}}\n")
    left = farrank(*reload)
    assert (left.returncode, left.stderr) == (
        3,
        f"farrank: {pid_file}: no server is running with this file\n",
    )
