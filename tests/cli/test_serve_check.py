"""`farrank serve --check` loads and opens everything as a start does, and lists every problem."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_calls.key_file import END_MARK
from farrank_cli.main import main
from farrank_indexes.index_manifest import read_manifest
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from farrank_server.config.schema import DeviceConfig, RankerConfig, ServerConfig
from farrank_server.engine.device.supervision import STOP_GRACE_S
from farrank_server.engine.loaded.document_cache import DocumentCache
from farrank_server.engine.loaded.loading import load_rankers
from farrank_server.engine.loaded.ranker import LoadedRanker
from support.language_models import make_language_model

if TYPE_CHECKING:
    from support.commands import Outcome
    from support.tls_files import TlsFiles

Farrank = Callable[..., "Outcome"]

TEXTS = {"rivers": "The river reaches the sea.", "bread": "Bread is baked from flour and water."}
CLOSED = ("--port=0", "--metrics-port=none", "--device=cpu")


@pytest.fixture(scope="module")
def index(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with tokens and the vectors of a bi-encoder."""
    folder = tmp_path_factory.mktemp("checked")
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in TEXTS.items()]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    stores = (f"--tokens={tiny_rankers['maxp']}", f"--encode={tiny_rankers['biencoder']}")
    assert main(["index", str(folder / "texts.jsonl"), f"--out={folder / 'index'}", *stores]) == 0
    return folder / "index"


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path, str], Path]:
    """Copy a folder, to damage it."""

    def copy(folder: Path, name: str) -> Path:
        return shutil.copytree(folder, tmp_path / name)

    return copy


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        yield bound.getsockname()[1]


def flip(path: Path, place: int = -1) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def keys(outcome: Outcome) -> list[str]:
    """Return the key at the beginning of each line of a refusal."""
    assert (outcome.exit_code, outcome.out) == (2, "")
    return [line.partition(": ")[0] for line in outcome.err.removeprefix("farrank: ").splitlines()]


def test_the_check_lists_the_rankers_and_opens_no_port(
    tiny_rankers: dict[str, Path],
    tiny_exports: dict[str, Path],
    index: Path,
    tls_files: TlsFiles,
    tmp_path: Path,
) -> None:
    ensemble = tmp_path / "ensemble"
    save_ensemble(Ensemble({name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp")}), ensemble)
    rankers = {"plain": tiny_rankers["firstp"], "both": ensemble, "bi": tiny_rankers["biencoder"]}
    # An address of loopback at which nothing else listens meanwhile.
    host = "127.0.0.78"
    with socket.socket() as bound:
        bound.bind((host, 0))
        port = bound.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "farrank_cli", "serve", "--check", f"--port={port}", "--metrics-port=0"]
        + [f"--set=listen.host={host}"]
        + [f"--ranker={name}={folder}" for name, folder in rankers.items()]
        + [f"--ranker=exported={tiny_exports['maxp']}", f"--index=docs={index}", "--device=cpu"]
        + [f"--set=first_stage.indexes.near.{key}" for key in ("kind=dense", f"path={index}", "encoder=bi")]
        + [f"--set=first_stage.indexes.fused.{key}" for key in ("kind=fusion", "of=docs,near")]
        + [f"--set=listen.tls.certificate={tls_files.certificate}"]
        + [f"--set=listen.tls.private_key={tls_files.private_key}", f"--pid-file={tmp_path / 'pid'}"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.partition(": ")[::2] for line in done.stdout.splitlines())
    assert list(said) == [
        *("gRPC", "HTTP", "metrics", "keys"),
        *("ranker plain, the default", "ranker both", "ranker both/maxp", "ranker both/avgp", "ranker bi"),
        *("ranker exported", "index docs", "index near", "index fused", "the configuration can be served"),
    ]
    assert said["keys"] == "none, everybody may call"
    assert said["gRPC"] == f"{host}, port {port}, TLS"
    assert (said["HTTP"], said["metrics"]) == ("none", f"{host}, a free port, plaintext")
    version = open_ranker(tiny_rankers["firstp"]).version
    assert said["ranker plain, the default"].startswith(
        f"firstp, version {version}, torch on cpu in fp32, padded, "
    )
    assert "(torch fp32, the fastest that can serve this ranker here; " in said["ranker plain, the default"]
    assert "openvino on cpu in fp32" in said["ranker exported"]
    assert "(openvino with onnx-fp32, the fastest" in said["ranker exported"]
    assert said["ranker both"].startswith("the mean of 2, version ")
    assert said["index docs"] == "2 documents, bm25(k1=0.9,b=0.4)"
    assert said["index near"].startswith("2 documents, dense(encoder=bi,")
    assert not (tmp_path / "pid").exists()


def test_every_problem_is_named_in_one_run(
    farrank: Farrank,
    tiny_rankers: dict[str, Path],
    tiny_exports: dict[str, Path],
    index: Path,
    copied: Callable[[Path, str], Path],
    taken_port: int,
    tmp_path: Path,
) -> None:
    cut, wrong, exported = (
        copied(tiny_rankers["maxp"], "cut"),
        copied(tiny_rankers["firstp"], "wrong"),
        copied(tiny_exports["maxp"], "exported"),
    )
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (wrong / "tokenizer.json").write_text("{}")
    (graph,) = exported.glob("exports/*/encoder.onnx")
    flip(graph)
    stored, lucene = copied(index, "stored"), copied(index, "lucene")
    flip(next(each for each in (stored / "tokens").rglob("*") if each.is_file() and each.suffix != ".json"))
    next(lucene.glob("segments_*")).write_bytes(b"none")

    outcome = farrank(
        *("serve", "--check", "--device=cpu", f"--port={taken_port}", f"--metrics-port={taken_port}"),
        *(f"--ranker={each.name}={each}" for each in (cut, wrong, exported)),
        *(f"--ranker=good={tiny_rankers['maxp']}", "--ranker=none=/nowhere"),
        *(f"--index={each.name}={each}" for each in (stored, lucene)),
        *("--index=empty=/nowhere", f"--index=docs={index}", f"--pid-file={tmp_path / 'none' / 'pid'}"),
    )

    assert keys(outcome) == [
        *("--pid-file", "listen.metrics_port", "listen.port", "listen.metrics_port"),
        *(
            "first_stage.indexes.empty.path",
            "rankers.wrong",
            "rankers.none",
            "rankers.cut",
            "rankers.exported",
        ),
        *("first_stage.indexes.lucene.path", "first_stage.indexes.stored.path"),
    ]
    assert f"listen.metrics_port: {taken_port} is also the port of listen.port" in outcome.err
    for said in (
        str(weights),
        f"{wrong}: tokenizer.json cannot be read",
        str(graph),
        str(stored),
        str(lucene),
    ):
        assert said in outcome.err
    assert "SHA-256" in outcome.err


def test_a_dense_index_is_held_to_the_ranker_that_made_its_vectors(
    farrank: Farrank, tiny_rankers: dict[str, Path], index: Path, copied: Callable[[Path, str], Path]
) -> None:
    manifest = read_manifest(stale := copied(index, "stale"))
    assert manifest is not None
    assert manifest.vectors is not None
    replace(manifest, vectors=replace(manifest.vectors, version="another")).write(stale)
    dense = [
        f"--set=first_stage.indexes.{name}.{key}"
        for name, folder in (("near", index), ("stale", stale))
        for key in ("kind=dense", f"path={folder}", "encoder=bi")
    ]
    flags = ("serve", "--check", *CLOSED, *dense, f"--ranker=good={tiny_rankers['maxp']}")

    made_by_another = farrank(*flags, f"--ranker=bi={tiny_rankers['biencoder']}")
    broken = copied(tiny_rankers["biencoder"], "broken")
    (broken / "model.safetensors").unlink()
    without = farrank(*flags, f"--ranker=bi={broken}")

    assert keys(made_by_another) == ["first_stage.indexes.stale.encoder"]
    assert "made by version another" in made_by_another.err
    # Consequences of the problem are listed with it.
    assert keys(without) == [
        "rankers.bi",
        *(f"first_stage.indexes.{name}.encoder" for name in ("near", "stale")),
    ]
    assert "the ranker 'bi' cannot be loaded" in without.err


def test_a_ranker_that_cannot_run_as_it_is_configured_is_named_with_its_key(
    farrank: Farrank, tiny_rankers: dict[str, Path]
) -> None:
    outcome = farrank(
        *("serve", "--check", *CLOSED),
        *(f"--ranker={name}={tiny_rankers['maxp']}" for name in ("a", "b")),
        *("--set=rankers.a.runtime=onnx", "--set=rankers.b.precision=int8"),
        "--set=batching.max_batch_tokens=10",
    )
    assert keys(outcome) == ["rankers.a.runtime", "rankers.b.precision"]


def test_members_that_have_a_rankers_name_are_found_without_loading(
    farrank: Farrank, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    members = {name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp")}
    save_ensemble(Ensemble(members), tmp_path / "ensemble")
    rankers = (f"--ranker=e={tmp_path / 'ensemble'}", f"--ranker=e/maxp={tiny_rankers['maxp']}")
    for how in ("--dry-run", "--check"):
        outcome = farrank("serve", how, *CLOSED, *rankers)
        assert keys(outcome) == ["rankers.e/maxp"]
        assert "its member e/maxp has the name of another ranker" in outcome.err


def test_an_exports_first_start_may_be_rehearsed(
    farrank: Farrank, tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All problems of files are reported before any export."""
    monkeypatch.setenv("FARRANK_CACHE", str(tmp_path))
    flags = ("serve", "--check", "--export=auto", *CLOSED)
    outcome = farrank(*flags, "--ranker=a=/nowhere", "--ranker=b=/neither", "--index=c=/nor")
    assert keys(outcome) == ["first_stage.indexes.c.path", "rankers.a", "rankers.b"]
    assert not list(tmp_path.iterdir())


def test_keys_are_read_and_what_they_list_is_looked_up(
    farrank: Farrank, tiny_rankers: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    for name, rights in {"old": ["--expires=2020-01-01"], "team": ["--rankers=m,gone"]}.items():
        assert farrank("keys", "new", name, f"--file={file}", *rights).exit_code == 0
    flags = ("serve", "--check", *CLOSED, f"--ranker=m={tiny_rankers['maxp']}", f"--keys={file}")

    good = farrank(*flags)
    file.write_text(f"{file.read_text()}\n[keys.wrong]\nsha256 = 'abc'\n{END_MARK}\n")
    wrong = farrank(*flags)
    file.write_text(f"{END_MARK}\n")
    empty = farrank(*flags)

    assert good.exit_code == 0
    assert f"\nkeys: 2 keys of {file}, 1 expired\n" in good.out
    assert "keys.team.rankers: there is no gone here" in caplog.text
    assert keys(wrong) == ["keys.wrong.sha256"]
    assert "keys: is empty" in empty.err
    assert str(file) in wrong.err


def test_the_configuration_may_be_printed_with_it(farrank: Farrank, tiny_rankers: dict[str, Path]) -> None:
    outcome = farrank("serve", "--check", "--print-config", *CLOSED, f"--ranker=m={tiny_rankers['maxp']}")
    assert outcome.exit_code == 0
    assert "  port: 0  # --port" in outcome.out
    assert outcome.out.endswith("\nthe configuration can be served\n")
    assert json.dumps(str(tiny_rankers["maxp"])) in outcome.out


def test_no_thread_of_the_device_outlives_the_check(
    farrank: Farrank, tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter aborts if it ends while another thread frees a model."""
    release = LoadedRanker.release

    def slow_release(ranker: LoadedRanker) -> None:
        time.sleep(STOP_GRACE_S + 0.5)
        release(ranker)

    monkeypatch.setattr(LoadedRanker, "release", slow_release)

    assert farrank("serve", "--check", *CLOSED, f"--ranker=slow={tiny_rankers['firstp']}").exit_code == 0

    assert "farrank-device" not in [thread.name for thread in threading.enumerate()]


def test_the_prompt_of_a_language_model_and_its_origin_are_named(farrank: Farrank, tmp_path: Path) -> None:
    folder = make_language_model(tmp_path / "lm", "qwen3")
    template = "{instruction}\nQ: {query}\nD: {document}\nA:"
    done = farrank(
        *("serve", "--check", f"--ranker=assumed={folder}", f"--ranker=set={folder}"),
        *(f"--set=rankers.set.template={template}", "--set=rankers.set.answers=1,0", *CLOSED),
    )
    assert done.exit_code == 0
    qwen3 = "(assumed: Qwen3-Reranker's, by model_type qwen3)"
    said = dict(line.partition(" asks with the template ")[::2] for line in done.out.splitlines())
    assert f"{qwen3}, answers yes and no {qwen3}, instruction " in said["ranker assumed"]
    given = f"{json.dumps(template)} (configured), answers 1 and 0 (configured), "
    assert said["ranker set"].startswith(given)
    assert said["ranker set"].endswith(qwen3)


def test_a_wrong_prompt_is_refused_by_its_key(farrank: Farrank, tmp_path: Path) -> None:
    folder = make_language_model(tmp_path / "lm", "qwen3")
    for setting, said in {
        "template={query} alone": f"rankers.lm: {folder}: template has {{document}} 0 times; it must have it",
        "template=": "rankers.lm.template: '' is not allowed; it must be a text with {query} and {document}",
        "answers=a,b,c": "rankers.lm.answers: ('a', 'b', 'c') is not allowed; it must be one or two tokens",
        "answers=yes indeed": f"rankers.lm: {folder}: answers[0] is 'yes indeed', which is",
    }.items():
        done = farrank("serve", "--dry-run", f"--ranker=lm={folder}", f"--set=rankers.lm.{setting}", *CLOSED)
        assert done.exit_code == 2
        assert said in done.err


def test_the_log_of_a_start_names_the_prompt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_language_model(tmp_path / "lm", "gemma")
    rankers = {"mine": RankerConfig(str(folder), answers=("Yes", "No"))}
    with caplog.at_level("INFO"):
        load_rankers(ServerConfig(rankers=rankers, device=DeviceConfig(name="cpu")), DocumentCache(0))
    (line,) = (each.getMessage() for each in caplog.records if " asks with the " in each.getMessage())
    assert line.startswith('ranker mine asks with the template "<bos>A: {query}\\nB: {document}')
    assumed = "(assumed: bge-reranker-v2-gemma's, by model_type gemma)"
    assert line.endswith(f" {assumed}, answers Yes and No (configured), no instruction")
