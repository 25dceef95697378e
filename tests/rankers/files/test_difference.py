"""A ranker stored as a difference has unchanged scores; differences that do not fit are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from farrank_exporters.export import artifact_of
from farrank_rankers.errors import ExportError, SourceError, WeightsError
from farrank_rankers.files.difference import save_difference
from farrank_rankers.files.model_files import embedded_sources, locate
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

QUERY, TEXTS = "old harbour", ["the sea and the harbour", "bread and stone", "a king under the tree " * 30]
MATRIX = "encoder.backbone.encoder.layer.1.output.dense.weight"
BIAS = "encoder.backbone.encoder.layer.0.output.dense.bias"
POSITIONS = "transformer.bert.embeddings.position_embeddings.weight"
WEIGHTS = "difference.safetensors"
# The number of values from which a matrix counts as large, and the width of the tiny backbone.
LARGE, WIDTH = 2**16, 32


def trained(backbone: Path, family: str = "parade-attn") -> Ranker:
    """A matrix changed by rank 2, a matrix changed completely, a bias, and a new head."""
    ranker = new_ranker(family, backbone, seed=1)
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        matrix = ranker.get_parameter(MATRIX)
        left, right = (torch.randn(size, 2, generator=rng) for size in matrix.shape)
        matrix.add_(0.3 * left @ right.T)
        whole = ranker.get_parameter("encoder.backbone.encoder.layer.0.output.dense.weight")
        whole.add_(0.01 * torch.randn(whole.shape, generator=rng))
        ranker.get_parameter(BIAS).add_(0.5)
    return ranker.eval()


@pytest.fixture(scope="module")
def base(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model with its weights in its folder."""
    folder = shutil.copytree(tiny_backbone, tmp_path_factory.mktemp("base") / "base")
    backbone = new_ranker("firstp", tiny_backbone, seed=5, pretrained=False).encoder.backbone
    save_file(dict(backbone.state_dict()), folder / "model.safetensors")
    return folder


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    save_difference(trained(base), tmp_path / "small", str(base))
    return tmp_path / "small"


def scores(ranker: Ranker) -> list[float]:
    return [each.score for each in ranker.score(QUERY, TEXTS)]


def test_it_scores_as_before(base: Path, folder: Path) -> None:
    before, opened = trained(base), open_ranker(folder)

    assert scores(opened) == pytest.approx(scores(before), rel=2e-3, abs=2e-3)
    assert scores(opened) != pytest.approx(scores(new_ranker("parade-attn", base, seed=1)), abs=1e-2)
    assert opened.spec == before.spec
    assert open_ranker(folder).version == opened.version


def test_only_what_differs_is_kept(base: Path, folder: Path) -> None:
    kept = load_file(folder / WEIGHTS)

    of_base = {name for name in kept if name.startswith("encoder.backbone.")}
    assert of_base == {
        f"{MATRIX}.left", f"{MATRIX}.right", BIAS, "encoder.backbone.encoder.layer.0.output.dense.weight"
    }  # fmt: skip
    assert kept[f"{MATRIX}.left"].shape[1] == kept[f"{MATRIX}.right"].shape[0] == 2
    assert {each.dtype for each in kept.values()} == {torch.float16}
    ranker = trained(base)
    assert kept.keys() - of_base == {name for name, _ in ranker.named_parameters() if "backbone" not in name}


def test_a_large_new_matrix_is_kept_in_int8(base: Path, tmp_path: Path) -> None:
    ranker = new_ranker("parade-transf-rand", base, seed=1, options={"positions": LARGE // WIDTH}).eval()
    table = ranker.aggregator.get_parameter(POSITIONS)
    with torch.no_grad():
        table[1] *= 100
        table[2] = 0
    save_difference(ranker, tmp_path / "small", str(base))

    kept, opened = load_file(tmp_path / "small" / WEIGHTS), open_ranker(tmp_path / "small")

    name = f"aggregator.{POSITIONS}"
    assert name not in kept
    assert kept[f"{name}.rows"].dtype == torch.int8
    assert {each for each in kept if each.endswith(".rows")} == {f"{name}.rows"}
    # Each row has its own step, and rounding changes a value by at most half of it.
    step = table.abs().amax(dim=1, keepdim=True) / 127
    found = opened.aggregator.get_parameter(POSITIONS)
    assert bool(((found - table).abs() <= 0.501 * step).all())
    assert bool((found[2] == 0).all())
    with torch.no_grad():
        table.copy_(found)
    assert scores(opened) == pytest.approx(scores(ranker), rel=2e-3, abs=2e-3)
    assert open_ranker(tmp_path / "small").version == opened.version

    without_checksum(tmp_path / "small")
    save_file({each: kept[each] for each in kept if each != f"{name}.scales"}, tmp_path / "small" / WEIGHTS)
    with pytest.raises(WeightsError, match=r"weight\.rows has no other part, .*weight\.scales"):
        open_ranker(tmp_path / "small")
    save_file({**kept, f"{name}.scales": torch.ones(3)}, tmp_path / "small" / WEIGHTS)
    with pytest.raises(WeightsError, match="are not rows of int8 and their scales"):
        open_ranker(tmp_path / "small")


def test_a_ranker_on_the_encoder_of_another_keeps_its_own_head_alone(
    base: Path, folder: Path, tmp_path: Path
) -> None:
    on_it = new_ranker("maxp", base, seed=7)
    on_it.encoder.backbone.load_state_dict(open_ranker(folder).encoder.backbone.state_dict())
    save_difference(on_it.eval(), tmp_path / "head", str(folder))

    kept, opened = load_file(tmp_path / "head" / WEIGHTS), open_ranker(tmp_path / "head")

    assert all(name.startswith("aggregator.") for name in kept)
    for name, weight in on_it.encoder.state_dict().items():
        assert torch.equal(opened.encoder.state_dict()[name], weight), name
    assert scores(opened) == pytest.approx(scores(on_it), rel=2e-3, abs=2e-3)
    assert opened.spec.family == "maxp"


def test_a_base_that_starts_from_the_ranker_itself_is_refused(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    (folder / "difference.json").write_text(json.dumps({"base": str(other)}))
    (other / "difference.json").write_text(json.dumps({"base": str(folder)}))
    with pytest.raises(SourceError, match="which starts from this very folder"):
        open_ranker(folder)


def test_it_is_no_backbone_for_a_new_head(folder: Path) -> None:
    # The folder alone would give the weights of its base.
    with pytest.raises(SourceError, match="is a trained ranker, kept as its difference from a model"):
        new_ranker("maxp", folder)


def test_the_base_stays_as_it_was(base: Path, folder: Path) -> None:
    before = (base / "model.safetensors").read_bytes()
    open_ranker(folder)
    assert (base / "model.safetensors").read_bytes() == before


def without_checksum(folder: Path) -> None:
    """Differences had this form before there was a checksum."""
    path = folder / "difference.json"
    path.write_text(json.dumps({"base": json.loads(path.read_text())["base"]}))


def test_a_flipped_bit_of_a_difference_is_found(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-5] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(WeightsError, match=r"difference\.safetensors is damaged: its SHA-256 is"):
        open_ranker(folder)
    without_checksum(folder)
    open_ranker(folder)


def test_a_damaged_difference_is_named(folder: Path) -> None:
    kept = load_file(folder / WEIGHTS)
    without_checksum(folder)

    save_file({**kept, "encoder.more": torch.ones(2)}, folder / WEIGHTS)
    with pytest.raises(WeightsError, match=r"has the tensor encoder\.more, which the model does not have"):
        open_ranker(folder)
    save_file({name: each for name, each in kept.items() if name != f"{MATRIX}.right"}, folder / WEIGHTS)
    with pytest.raises(WeightsError, match=r"layer\.1\.output\.dense\.weight\.left has no other part"):
        open_ranker(folder)
    save_file({name: each for name, each in kept.items() if name != f"{MATRIX}.left"}, folder / WEIGHTS)
    with pytest.raises(WeightsError, match=r"layer\.1\.output\.dense\.weight\.right has no other part"):
        open_ranker(folder)
    save_file({**kept, f"{MATRIX}.left": kept[f"{MATRIX}.left"][:3]}, folder / WEIGHTS)
    with pytest.raises(WeightsError, match=r"tensor .*layer\.1\.output\.dense\.weight has shape \(3, "):
        open_ranker(folder)
    head = next(name for name in kept if not name.startswith("encoder"))
    save_file({name: each for name, each in kept.items() if name != head}, folder / WEIGHTS)
    with pytest.raises(WeightsError, match=f"has no weights for {head}"):
        open_ranker(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(WeightsError, match=r"difference\.safetensors is damaged or not a safetensors file"):
        open_ranker(folder)


def test_a_base_that_is_missing_or_another_is_named(base: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "difference.json").write_text(json.dumps({"base": "no-such/model"}))
    with pytest.raises(SourceError, match="no-such/model is neither a folder nor a model from the hub"):
        open_ranker(folder)
    (folder / "difference.json").write_text("{}")
    with pytest.raises(SourceError, match=r"difference\.json: base is None"):
        open_ranker(folder)
    other = shutil.copytree(base, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    with pytest.raises(SourceError, match="has another configuration than the ranker"):
        save_difference(trained(base), tmp_path / "no", str(other))
    assert not (tmp_path / "no").exists()


def test_an_export_needs_a_folder_of_its_own(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="--out is missing"), artifact_of(str(folder), None):
        pass
    with artifact_of(str(folder), tmp_path / "out") as (ranker, _):
        version = ranker.version
    assert open_ranker(tmp_path / "out").version == version


def test_an_unknown_embedded_ranker_lists_the_known() -> None:
    with pytest.raises(SourceError, match=r"'embedded:none' is unknown; known are embedded"):
        locate("embedded:none")
    assert embedded_sources()[0] == "embedded"
