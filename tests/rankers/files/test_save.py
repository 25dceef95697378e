import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

MakeModel = Callable[..., Path]
EditJson = Callable[..., None]
SaveAndOpen = Callable[[Ranker, str, Sequence[str]], Ranker]
QUERY = "neural query"
DOCUMENTS = ["search engine ranks passages of the long document " * 4, "hello 😀", ""]


def scores(ranker: Ranker) -> list[tuple[float, tuple[float, ...]]]:
    return [(item.score, item.chunk_scores) for item in ranker.score(QUERY, DOCUMENTS)]


@pytest.fixture
def artifact(cross_encoder: Path, tmp_path: Path) -> Path:
    save_ranker(new_ranker("maxp", cross_encoder, Chunking("sliding", 16, 10, 64)), tmp_path / "maxp")
    return tmp_path / "maxp"


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_round_trip_is_exact(
    make_model: MakeModel,
    tiny_options: dict[str, dict[str, Any]],
    save_and_open: SaveAndOpen,
    tmp_path: Path,
    family: str,
    model_type: str,
) -> None:
    options = tiny_options.get(family)
    ranker = new_ranker(family, make_model(model_type), max_query_tokens=8, seed=3, options=options).eval()
    assert not save_and_open(ranker, QUERY, DOCUMENTS).training
    assert {path.name for path in (tmp_path / "artifact").iterdir()} == {
        "config.json",
        "model.safetensors",
        "ranker.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.parametrize("labels", [1, 2])
def test_a_saved_cross_encoder_keeps_its_scores(
    make_model: MakeModel, save_and_open: SaveAndOpen, labels: int
) -> None:
    save_and_open(open_ranker(make_model("bert", labels=labels), family="sump"), QUERY, DOCUMENTS)


def test_a_saved_artifact_can_be_saved_again(artifact: Path, tmp_path: Path) -> None:
    save_ranker(open_ranker(artifact), tmp_path / "again")
    assert open_ranker(tmp_path / "again").version == open_ranker(artifact).version
    for path in artifact.iterdir():
        if path.name != "model.safetensors":
            assert (tmp_path / "again" / path.name).read_text() == path.read_text()


def test_the_version_is_the_contents(artifact: Path, tmp_path: Path, edit_json: EditJson) -> None:
    ranker = open_ranker(artifact)
    shutil.copytree(artifact, tmp_path / "renamed")
    edit_json(tmp_path / "renamed" / "ranker.json", backbone="another name", provenance={"by": "someone"})
    assert open_ranker(tmp_path / "renamed").version == ranker.version
    assert open_ranker(artifact, dtype=torch.bfloat16).version == ranker.version
    versions = {ranker.version, open_ranker(artifact, window=15).version}
    changed = open_ranker(artifact)
    with torch.no_grad():
        next(changed.aggregator.parameters()).add_(1)
    assert len(versions | {changed.version}) == 3


def test_lower_precision_is_the_encoders_alone(artifact: Path) -> None:
    ranker, expected = open_ranker(artifact, dtype=torch.bfloat16), open_ranker(artifact)
    assert {weight.dtype for weight in ranker.encoder.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in ranker.aggregator.parameters()} == {torch.float32}
    literal = open_ranker(artifact)
    literal.encoder.to(torch.bfloat16)
    assert scores(ranker) == scores(literal)
    # bf16 has 8 significant bits: rounding changes a value by at most 2^-8 of it. Some 25 roundings occur on
    # the way through two layers, in independent directions, so that a vector is off by up to √25 · 2^-8 of
    # its length, which is √H after a normalization. A linear head multiplies this at most by its own length.
    weight = expected.aggregator.get_parameter("head.linear.weight")  # (1, H)
    bound = 5 * 2**-8 * weight.norm().item() * weight.numel() ** 0.5
    pairs = [
        pair
        for found, exact in zip(scores(ranker), scores(expected), strict=True)
        for pair in zip(found[1], exact[1], strict=True)
    ]
    assert all(abs(found - exact) < bound for found, exact in pairs)
    spread = max(exact for _, exact in pairs) - min(exact for _, exact in pairs)
    assert bound < spread / 2, "scores of other chunks would pass, too"


def test_limits_can_be_changed_when_opening(artifact: Path) -> None:
    reader = open_reader(artifact, window=8, max_document_tokens=20, max_query_tokens=4, pad_query_to=6)
    assert reader.spec.chunking == Chunking("sliding", 8, 5, 20)
    assert (reader.spec.max_query_tokens, reader.spec.pad_query_to) == (4, 6)
    assert open_reader(artifact, family="maxp", window=None).spec == open_reader(artifact).spec
    with pytest.raises(SpecError, match="family is 'sump'; this ranker was trained as maxp"):
        open_reader(artifact, family="sump")


def test_an_artifact_with_a_limit_keeps_it_and_names_the_cut(tmp_path: Path, cross_encoder: Path) -> None:
    save_ranker(new_ranker("maxp", cross_encoder, seed=1, max_document_tokens=1431), tmp_path)
    ranker, text = open_ranker(tmp_path), "search " * 2000
    assert ranker.spec.chunking.max_document_tokens == 1431
    (cut,) = ranker.score("query", [text], count_tokens=True)
    assert cut.tokens_cut == 2000 - 1431
    lifted = open_ranker(tmp_path, max_document_tokens=WHOLE_DOCUMENT)
    assert lifted.score("query", [text], count_tokens=True)[0].tokens_cut == 0
    assert lifted.version != ranker.version


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


HEAD = "aggregator.head.linear.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop(HEAD),
            r"model\.safetensors lacks the tensor aggregator\.head\.linear\.weight of shape \(1, 32\)",
        ),
        (
            lambda tensors: tensors.update({HEAD: torch.zeros(1, 33)}),
            r"tensor aggregator\.head\.linear\.weight has shape \(1, 33\); the model expects \(1, 32\)",
        ),
        (
            lambda tensors: tensors.update({HEAD: torch.zeros(1, 32, dtype=torch.int64)}),
            r"tensor aggregator\.head\.linear\.weight is torch\.int64; the model expects torch\.float32",
        ),
        (
            lambda tensors: tensors.update({"more": torch.zeros(1)}),
            "has the tensor more, which the model does not have",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(
    artifact: Path, change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    change_weights(artifact, change)
    with pytest.raises(WeightsError, match=message):
        open_ranker(artifact)


@pytest.mark.parametrize("size", [0, 5, 1000])
def test_a_truncated_file_is_named(artifact: Path, size: int) -> None:
    path = artifact / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or not a safetensors file"):
        open_ranker(artifact)


@pytest.mark.parametrize("place", [-1, -1000])
def test_a_flipped_bit_is_found(artifact: Path, place: int) -> None:
    path = artifact / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged: its weights have the digest"):
        open_ranker(artifact)


def test_weights_without_a_digest_are_opened(artifact: Path) -> None:
    """Artifacts had this form before there was a digest, and other programs write it."""
    path = artifact / "model.safetensors"
    version = open_ranker(artifact).version
    save_file(load_file(path), path)
    assert open_ranker(artifact).version == version


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_finite_numbers_are_refused(artifact: Path, value: float) -> None:
    path = artifact / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][100, 3] = value
    save_file(tensors, path)
    with pytest.raises(
        WeightsError, match=rf"model\.safetensors: tensor {name} has values that are not finite"
    ):
        open_ranker(artifact)


def test_large_weights_whose_sum_is_too_large_are_opened(artifact: Path) -> None:
    path = artifact / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name][:100] = 3e38
    save_file(tensors, path)
    open_ranker(artifact)


def test_a_blob_of_the_hubs_cache_is_held_to_its_name(cross_encoder: Path, tmp_path: Path) -> None:
    """A file there is a link to a blob that is named by its SHA-256."""
    folder = tmp_path / "snapshot"
    shutil.copytree(cross_encoder, folder)
    data = (folder / "model.safetensors").read_bytes()
    blob = tmp_path / hashlib.sha256(data).hexdigest()
    blob.write_bytes(data)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(blob)
    open_ranker(folder)
    blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(WeightsError, match=rf"model\.safetensors is damaged: .*{blob.name} has the SHA-256"):
        open_ranker(folder)


def test_pickles_are_never_opened(artifact: Path) -> None:
    (artifact / "model.safetensors").rename(artifact / "pytorch_model.bin")
    message = (
        r"pickled weights \(pytorch_model\.bin\): pickles can run code, and are not opened; convert them"
    )
    with pytest.raises(WeightsError, match=message):
        open_ranker(artifact)


def test_damaged_descriptions_are_named(artifact: Path, edit_json: EditJson) -> None:
    spec = (artifact / "ranker.json").read_text()
    for text, message in (
        ("{", r"ranker\.json: the text is not JSON"),
        (
            json.dumps(json.loads(spec) | {"family": "best"}),
            r"ranker\.json: family is 'best'; it must be one of",
        ),
        (json.dumps(json.loads(spec) | {"top_k": 3}), "the spec has the unknown key top_k"),
    ):
        (artifact / "ranker.json").write_text(text)
        with pytest.raises(SpecError, match=message):
            open_reader(artifact)
    (artifact / "ranker.json").write_text(spec)
    edit_json(artifact / "config.json", model_type="unheard-of")
    with pytest.raises(SourceError, match=r"architecture that transformers lacks \(unheard-of, release "):
        open_ranker(artifact)
    edit_json(artifact / "config.json", model_type=None)
    with pytest.raises(SourceError, match=r"config\.json lacks model_type"):
        open_ranker(artifact)
    (artifact / "config.json").write_text("[]")
    with pytest.raises(SourceError, match=r"config\.json must hold a JSON object"):
        open_ranker(artifact)
    (artifact / "config.json").unlink()
    with pytest.raises(SourceError, match=r"config\.json is missing"):
        open_reader(artifact)


def test_weights_that_cannot_be_written_are_named(artifact: Path, tmp_path: Path) -> None:
    # A folder in the file's place fails like a full disk: in safetensors, and not with an error of Python's.
    (tmp_path / "out" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(WeightsError, match=r"out/model\.safetensors cannot be written: "):
        save_ranker(open_ranker(artifact), tmp_path / "out")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_are_those_of_the_umask(
    make_backbone: Callable[..., Path], tmp_path: Path, umask: int, mode: int
) -> None:
    """A server that runs as another user reads a mounted artifact; a mask that forbids this is respected."""
    before = os.umask(umask)
    try:
        save_ranker(new_ranker("maxp", make_backbone("bert"), pretrained=False), tmp_path / "artifact")
        save_ranker(new_ranker("maxp", make_backbone("bert"), pretrained=False), tmp_path / "artifact")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "artifact").iterdir()}
    assert "model.safetensors" in modes
    assert modes == dict.fromkeys(modes, mode)
