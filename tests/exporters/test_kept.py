"""Exports that are made once per machine and kept in its cache."""

import errno
import json
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import farrank_exporters.kept
import farrank_exporters.parity
from farrank_exporters.bounded import Bounds
from farrank_exporters.export import export_ranker
from farrank_exporters.kept import ExportChoice, Form, faster_than_torch, kept_export
from farrank_exporters.parity import TextScores
from farrank_rankers import chunking
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.exports.export_folder import cache_folder, open_exported
from farrank_rankers.files.depth_file import write_plan
from farrank_rankers.files.open import open_ranker
from farrank_runtimes.choose import open_ranker_runtime
from support.exported_rankers import CALIBRATION, MEASURED
from support.published_exports import save_biencoder

pytestmark = pytest.mark.usefixtures("traced_before", "quantized_once")


@pytest.fixture
def ranker(tiny_rankers: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARRANK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precisions of exports in the order of their making."""
    precisions: list[str] = []

    def noted(ranker: Any, artifact: Any, form: Any, precision: Any, **named: Any) -> Any:
        precisions.append(precision)
        return export_ranker(ranker, artifact, form, precision, **named)

    monkeypatch.setattr(farrank_exporters.kept, "export_ranker", noted)
    return precisions


def kept(source: Path, precisions: Any = ("int8", "fp32"), **more: Any) -> ExportChoice:
    forms = [Form("openvino", each) for each in precisions]
    return kept_export(str(source), forms, (MEASURED, CALIBRATION), **more)


def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FARRANK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "farrank"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "farrank"
    monkeypatch.setenv("FARRANK_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_tried_precisions_are_faster_than_torch() -> None:
    assert list(map(str, faster_than_torch())) == [
        "openvino in int8",
        "openvino in bf16",
        "onnx in int8",
        "openvino in fp32",
        "onnx in fp32",
    ]


def test_an_export_is_made_once(ranker: Path, cache: Path, made: list[str], any_tau: None) -> None:
    first, again = kept(ranker), kept(ranker)
    assert first == again
    assert made == ["int8"]
    assert first.export is not None
    assert first.export.folder.parents[2] == cache / "exports"
    assert first.export.manifest.runtimes == ("openvino",)
    assert first.export.manifest.parity[0].bound == "kendall_tau >= -1, worst_tau >= -1, ndcg10 >= 0.995"
    assert not list(first.export.folder.glob("encoder.onnx*"))
    assert not list(Path(first.source).glob("*.safetensors"))
    served = open_ranker_runtime(first.source, {}, runtime="openvino")
    original = open_ranker(ranker)
    assert served.version == original.version
    found = TextScores(served.runtime, served.reader, MEASURED.documents).score("neural query")
    expected = [each.score for each in original.score("neural query", MEASURED.documents)]
    assert found.tolist() == pytest.approx(expected, abs=0.1)


def test_another_content_is_another_export(ranker: Path, cache: Path, made: list[str], any_tau: None) -> None:
    whole = kept(ranker, ["fp32"])
    less = kept(ranker, ["fp32"], max_query_tokens=4)
    assert less.export is not None
    assert open_exported(less.export).reader.spec.max_query_tokens == 4
    weights = ranker / "model.safetensors"
    tensors = load_file(weights)
    next(iter(tensors.values())).view(-1)[0] += 0.01
    save_file(tensors, weights)
    other = kept(ranker, ["fp32"])
    assert len({whole.source, less.source, other.source}) == 3
    assert made == ["fp32"] * 3


def test_rankers_with_other_plans_keep_exports_of_their_own(
    ranker: Path, cache: Path, made: list[str]
) -> None:
    plans = [DepthPlan((Round(1.0, chunks),)) for chunks in (3, 2)]
    found = []
    for plan in plans:
        write_plan(ranker, plan)
        found.append(kept(ranker, ["fp32"]).export)
    assert [open_exported(each).reader.spec.depth for each in found if each is not None] == plans
    assert made == ["fp32"] * 2


def test_refused_precisions_are_not_tried_again(
    ranker: Path, cache: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(farrank_exporters.parity, "MIN_TAU", {"int8": 1.1, "bf16": 1.1, "fp16": 1.1})
    for _ in range(2):
        found = kept(ranker)
        assert found.export is not None
        assert found.export.manifest.precision == "fp32"
        assert list(found.refused) == ["openvino in int8"]
        assert "kendall_tau" in found.refused["openvino in int8"]
        nothing = kept(ranker, ["int8"])
        assert (nothing.source, nothing.export) == (str(ranker), None)
    assert made == ["int8", "fp32", "int8"]


def test_a_form_beyond_its_bounds_is_tried_again_with_wider_ones(ranker: Path, cache: Path) -> None:
    narrow = Bounds(memory=2**20, seconds=240.0)
    for bounds in (narrow, narrow, replace(narrow, memory=2**19)):
        nothing = kept(ranker, ["fp32"], bounds=bounds)
        assert (nothing.source, nothing.export) == (str(ranker), None)
        # Found in the cache, the reason is that of the first time.
        assert nothing.refused["openvino in fp32"].endswith("its bound is 0.0 GiB")
        (place,) = (path for path in (cache / "exports").iterdir() if path.is_dir())
        assert [path.name for path in place.iterdir()] == ["refused.json"]
    made = place.stat().st_ino
    wide = kept(ranker, ["fp32"], bounds=Bounds(2**34, 240.0))
    assert wide.export is not None
    assert (wide.refused, wide.source) == ({}, str(place))
    assert place.stat().st_ino != made
    assert kept(ranker, ["fp32"], bounds=narrow).export == wide.export
    # The time is wider, but the memory was too small.
    assert kept(ranker, ["int8"], bounds=narrow).export is None
    same = kept(ranker, ["int8"], bounds=replace(narrow, seconds=480.0))
    assert same.refused == kept(ranker, ["int8"], bounds=narrow).refused


def test_a_kept_export_stands_when_bounds_are_wider(ranker: Path, cache: Path, made: list[str]) -> None:
    first = kept(ranker, ["fp32"])
    refused = {"openvino in int8": {"reason": "it takes more than 1 minutes, its bound", "seconds": 60.0}}
    (Path(first.source) / "refused.json").write_text(json.dumps(refused))
    again = kept(ranker, ["fp32"], bounds=Bounds(2**34, 240.0))
    assert (again.export, list(again.refused)) == (first.export, list(refused))
    assert made == ["fp32"]


def test_damaged_exports_are_made_again(ranker: Path, cache: Path, made: list[str], any_tau: None) -> None:
    first = kept(ranker, ["fp32"])
    assert first.export is not None
    with first.export.path("encoder", "openvino").open("ab") as file:
        file.write(b"x")
    again = kept(ranker, ["fp32"])
    assert again.export is not None
    again.export.verify()
    (Path(again.source) / "refused.json").unlink()
    assert kept(ranker, ["fp32"]).refused == {}
    assert made == ["fp32"] * 3
    (Path(again.source) / "refused.json").write_text('{"onnx in')
    assert kept(ranker, ["fp32"]).refused == {}
    (Path(again.source) / "tokenizer.json").write_text("{}")
    served = kept(ranker, ["fp32"])
    assert served.export is not None
    open_exported(served.export)
    assert made == ["fp32"] * 5


def test_another_chat_template_is_another_export(
    ranker: Path, cache: Path, made: list[str], any_tau: None
) -> None:
    """The template may contain the instruction of a language model."""
    first = kept(ranker, ["fp32"])
    (ranker / "chat_template.jinja").write_text("{{ messages }}")
    assert kept(ranker, ["fp32"]).source != first.source
    assert made == ["fp32"] * 2


def test_another_default_limit_is_another_export(
    cache: Path, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of Farrank: the model's files are the same, but the kept export has an old limit."""
    model = tmp_path / "model"
    save_biencoder(model)
    for limit in (80, 80, 40):
        usual = chunking.Chunking("sliding", window=20, stride=15, max_document_tokens=limit)
        monkeypatch.setattr(chunking, "_USUAL", {**chunking._USUAL, "dual": usual})
        kept(model, ["fp32"])
    assert made == ["fp32"] * 2


def test_existing_exports_are_served_from_a_read_only_cache(
    ranker: Path, cache: Path, made: list[str], any_tau: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept(ranker, ["fp32"])

    def read_only(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system", str(cache))

    monkeypatch.setattr(farrank_exporters.kept, "_alone", read_only)
    assert kept(ranker, ["fp32"]) == first
    assert made == ["fp32"]
    with pytest.raises(OSError, match="Read-only file system"):
        kept(ranker, ["fp32"], max_query_tokens=4)


def test_remains_of_a_kill_are_removed(ranker: Path, cache: Path, any_tau: None) -> None:
    place = Path(kept(ranker, ["fp32"]).source)
    shutil.rmtree(place)
    left = place.with_name(f".{place.name}.x1y2z3a4")
    (left / place.name).mkdir(parents=True)
    (left / place.name / "model.safetensors").write_bytes(b"half of it")
    kept(ranker, ["fp32"])
    assert not left.exists()
    assert place.with_name(f".{place.name}.lock").exists()


def test_an_interrupted_export_leaves_nothing(ranker: Path, cache: Path, any_tau: None) -> None:
    def interrupted(text: str, done: int, total: int) -> None:
        if "scoring" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(ranker, ["fp32"], progress=interrupted)
    assert [path for path in (cache / "exports").iterdir() if path.is_dir()] == []
    assert kept(ranker, ["fp32"]).export is not None


def _hold(lock: str, held: Any, let_go: Any) -> None:
    import fcntl

    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held.set()
        let_go.wait(240)


def test_one_of_two_processes_exports(ranker: Path, cache: Path, made: list[str], any_tau: None) -> None:
    place = Path(kept(ranker, ["fp32"]).source)
    shutil.rmtree(place)
    lock = place.with_name(f".{place.name}.lock")
    assert lock.exists()
    spawning = multiprocessing.get_context("spawn")
    held, let_go = spawning.Event(), spawning.Event()
    other = spawning.Process(target=_hold, args=(str(lock), held, let_go))
    other.start()
    try:
        assert held.wait(240)
        assert kept(ranker, ["fp32"], waiting=let_go.set).export is not None
        assert let_go.is_set()
    finally:
        let_go.set()
        other.join(240)
    assert json.loads((place / "refused.json").read_text()) == {}
