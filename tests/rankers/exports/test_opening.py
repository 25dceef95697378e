import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank_rankers.errors import ExportError, SpecError
from farrank_rankers.exports.export_folder import Export, check_within, open_exported
from farrank_rankers.files.open import open_ranker, open_reader

WriteExport = Callable[..., Export]


def in_place(artifact: Path) -> Export:
    return Export.read(artifact / "exports" / "onnx-fp32")


def test_the_version_is_that_of_the_ranker_in_torch(artifact: Path, write_export: WriteExport) -> None:
    export = write_export()
    exported = open_exported(in_place(artifact))
    assert exported.export == export
    assert exported.version == open_ranker(artifact).version == export.manifest.source_version
    narrower = open_exported(in_place(artifact), window=100)
    assert narrower.version == open_ranker(artifact, window=100).version != exported.version


def test_weights_may_be_left_out(artifact: Path, write_export: WriteExport) -> None:
    version = write_export().manifest.source_version
    (artifact / "model.safetensors").unlink()
    assert open_exported(in_place(artifact)).version == version


@pytest.mark.parametrize(
    "name", ["ranker.json", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_a_ranker_that_changed_makes_its_export_stale(
    artifact: Path, write_export: WriteExport, name: str
) -> None:
    write_export()
    path = artifact / name
    if name.endswith(".json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"added": 1}))
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    with pytest.raises(
        ExportError,
        match=rf"onnx-fp32 is stale: .*{name} changed since; farrank export .* --precision fp32 --force",
    ):
        open_exported(in_place(artifact))


def test_a_damaged_export_is_not_opened(artifact: Path, write_export: WriteExport) -> None:
    (write_export().folder / "aggregator.onnx").write_bytes(b"")
    with pytest.raises(ExportError, match=r"aggregator\.onnx is damaged"):
        open_exported(in_place(artifact))


def test_no_more_is_asked_of_a_graph_than_it_was_made_for(artifact: Path, write_export: WriteExport) -> None:
    write_export()
    open_exported(in_place(artifact), max_document_tokens=500, stride=150)
    with pytest.raises(SpecError, match="max_query_tokens is 16; the export was made for 32"):
        open_exported(in_place(artifact), max_query_tokens=16)
    with pytest.raises(SpecError, match=r"chunking.window is 200, .* 235 tokens; .* at most 185"):
        open_exported(in_place(artifact), window=200)
    open_exported(in_place(artifact), stride=50)  # unbounded, because MaxP has no positions for chunks


def test_an_export_is_for_any_number_of_chunks_that_have_positions(tiny_rankers: dict[str, Path]) -> None:
    folder = tiny_rankers["parade-transf-rand"]
    made_for = open_reader(folder)
    assert made_for.spec.most_chunks() == 509
    check_within(made_for, open_reader(folder, max_document_tokens=500))
    check_within(made_for, open_reader(folder, stride=50))
    with pytest.raises(SpecError, match=r"may be 600 chunks; the positions .* hold at most 509"):
        open_reader(folder, max_document_tokens=60_000)


def test_an_export_opens_without_torch(artifact: Path, write_export: WriteExport) -> None:
    write_export()
    script = (
        "import sys; from pathlib import Path; "
        "from farrank_rankers.exports.export_folder import Export, open_exported; "
        f"open_exported(Export.read(Path({str(artifact)!r}, 'exports/onnx-fp32'))); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
