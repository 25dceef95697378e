"""`farrank rankers measure`: published graphs next to their weights, and the runtime chosen because of it."""

import json
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_rankers.exports.published_parity import MEASURED, read_measured, write_measured
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement, PrecisionAbsent
from support import published_exports as made
from support.exported_rankers import text
from support.language_models import make_language_model
from support.made_once import made_once

if TYPE_CHECKING:
    from support.commands import Outcome

CPU = Placement(device="cpu", threads=1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": text(9 + 7 * number, number)}) for number in range(16)))
    return file


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        model = made.save_cross_encoder(folder)
        graph = made.write_onnx(model, folder / "onnx" / "model.onnx")
        made.quantized(graph, "model_quantized.onnx")

    return made_once(tmp_path_factory, "published-to-measure", make)


def reason(folder: Path) -> str:
    return open_ranker_runtime(str(folder), {}, runtime="onnx", placement=CPU).reason


def test_a_graph_is_measured_listed_and_served_with_its_report(
    farrank: "Callable[..., Outcome]", published: Path, texts: Path, tmp_path: Path
) -> None:
    folder = made.copied(published, tmp_path / "published")
    listed = farrank("rankers", "exports", folder).out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["onnx/model.onnx", "onnx/model_quantized.onnx"]
    assert all(line.count("unknown") == 4 for line in listed[1:])

    outcome = farrank("rankers", "measure", folder, "--texts", texts)

    assert outcome.exit_code == 0, outcome.err
    first = next(line for line in outcome.out.splitlines() if "with onnx in fp32" in line)
    assert re.match(r"onnx/model\.onnx with onnx in fp32: \S+ at most, \S+ in the mean; tau 1\.0000", first)
    assert "BEYOND" not in first
    assert outcome.out.splitlines()[-1] == f"report in {folder / MEASURED}"
    listed = farrank("rankers", "exports", folder).out.splitlines()
    assert not any("unknown" in line for line in listed)
    served = open_ranker_runtime(str(folder), {}, runtime="onnx", precision="fp32", placement=CPU)
    assert served.parity is not None
    assert served.parity.max_difference < 1e-5
    assert "unknown" not in served.reason
    # The measurement is one of the graph, so another window does not affect it.
    assert open_ranker_runtime(
        str(folder), {"window": 30, "stride": 20}, runtime="onnx", precision="fp32", placement=CPU
    ).parity

    # A graph that has changed since then counts as not measured.
    made.write_onnx(made.save_cross_encoder(tmp_path / "other", seed=9), folder / "onnx" / "model.onnx")
    assert (
        "parity unknown"
        in open_ranker_runtime(str(folder), {}, runtime="onnx", precision="fp32", placement=CPU).reason
    )


def test_int8_serves_by_default_if_measured_close_and_never_beyond_its_bound(
    farrank: "Callable[..., Outcome]", published: Path, texts: Path, tmp_path: Path
) -> None:
    from dataclasses import replace

    folder = made.copied(published, tmp_path / "published")
    assert reason(folder).startswith("onnx with onnx/model.onnx,")
    assert farrank("rankers", "measure", folder, "--texts", texts).exit_code == 0
    # This test is not about the effect of the tiny model's int8 on its rankings.
    measured = read_measured(folder)
    assert {(each.file, each.runtime, each.precision) for each in measured} >= {
        ("onnx/model.onnx", "onnx", "fp32"),
        ("onnx/model.onnx", "openvino", "fp32"),
        ("onnx/model_quantized.onnx", "onnx", "int8"),
    }
    write_measured(folder, [replace(each, beyond=None) for each in measured])
    served = open_ranker_runtime(str(folder), {}, runtime="onnx", placement=CPU)
    assert served.reason.startswith("onnx with onnx/model_quantized.onnx,")
    assert served.parity is not None
    # With a report about another file, the server chooses no export by itself.
    changed = made.copied(folder, tmp_path / "changed")
    weights_of_another = made.save_cross_encoder(tmp_path / "other", seed=9)
    made.quantized(
        made.write_onnx(weights_of_another, tmp_path / "model.onnx"), "model_quantized.onnx"
    ).replace(changed / "onnx" / "model_quantized.onnx")
    said = reason(changed)
    assert said.startswith("onnx with onnx/model.onnx,")
    assert "model_quantized.onnx changed since it was measured" in said
    for other in ("model.safetensors", "onnx/model.onnx"):
        (changed / other).unlink()
    alone = reason(changed)
    assert alone.startswith("onnx with onnx/model_quantized.onnx,")
    assert alone.endswith("parity unknown: it was not compared with the weights")
    assert "changed since" not in alone
    write_measured(folder, [replace(each, beyond="kendall_tau is 0.1") for each in measured])
    with pytest.raises(
        PrecisionAbsent, match=r"model_quantized\.onnx is beyond its bound: kendall_tau is 0\.1"
    ):
        open_ranker_runtime(str(folder), {}, runtime="onnx", precision="int8", placement=CPU)
    named = open_ranker_runtime(str(folder), {}, export_file="onnx/model_quantized.onnx", placement=CPU)
    assert "beyond its bound: kendall_tau is 0.1" in named.reason


def test_graphs_of_other_weights_are_beyond_their_bound(
    farrank: "Callable[..., Outcome]", published: Path, texts: Path, tmp_path: Path
) -> None:
    folder = made.copied(published, tmp_path / "published")
    made.other_weights(folder)
    outcome = farrank("rankers", "measure", folder, "--texts", texts)
    assert outcome.exit_code == 0, outcome.err
    assert "onnx/model.onnx with onnx in fp32" in outcome.out
    assert "BEYOND ITS BOUND: with onnx max_difference is" in outcome.out
    # The weights are served, because the graphs belong to other weights.
    served = open_ranker_runtime(str(folder), {}, placement=CPU)
    assert served.runtime.capabilities().runtime == "torch"
    assert "onnx/model.onnx is beyond its bound" in served.reason


def test_unmeasurable_and_unreadable_graphs_are_reported(
    farrank: "Callable[..., Outcome]", published: Path, texts: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    made.save_cross_encoder(bare)
    outcome = farrank("rankers", "measure", bare, "--texts", texts)
    assert outcome.exit_code == 2
    assert "has no published graphs: no onnx/model*.onnx" in outcome.err
    folder = made.copied(published, tmp_path / "published")
    (folder / "model.safetensors").unlink()
    outcome = farrank("rankers", "measure", folder, "--texts", texts)
    assert outcome.exit_code == 2
    assert "model.safetensors is missing" in outcome.err
    (folder / MEASURED).write_text('{"format": 2, "measured": [], "digest": "0"}')
    outcome = farrank("rankers", "exports", folder)
    assert outcome.exit_code == 2
    assert f"{folder / MEASURED} has changed since it was written" in outcome.err


def test_graphs_that_this_machine_or_farrank_cannot_serve_are_listed_with_the_reason(
    farrank: "Callable[..., Outcome]", published: Path, tmp_path: Path
) -> None:
    folder = made.copied(published, tmp_path / "published")
    missing = "arm64" if platform.machine().lower() not in ("arm64", "aarch64") else "avx2"
    name = f"onnx/model_{'qint8' if missing == 'arm64' else 'quint8'}_{missing}.onnx"
    (folder / "onnx" / "model_quantized.onnx").rename(folder / name)
    said = f"no: quantized for {missing}, which this processor lacks"
    listed = farrank("rankers", "exports", folder).out.splitlines()
    (line,) = (line for line in listed if line.startswith(name))
    assert line.endswith(said)

    model = make_language_model(tmp_path / "lm", "qwen3")
    (model / "onnx").mkdir()
    shutil.copy(folder / "onnx" / "model.onnx", model / "onnx" / "model.onnx")
    outcome = farrank("rankers", "exports", model)
    assert outcome.exit_code == 0
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("onnx/model.onnx"))
    assert line.endswith(
        "no: published graphs of a cross-encoder or biencoder are served, and this is a yes-no"
    )
