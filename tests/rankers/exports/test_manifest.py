import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.folder import MANIFEST, Export
from farrank_rankers.exports.manifest import ExportManifest, Refused

WriteExport = Callable[..., Export]


def test_what_was_written_is_read(write_export: WriteExport) -> None:
    export = write_export()
    assert Export.read(export.folder) == export
    assert export.manifest.name == "onnx-fp32"
    assert export.path("encoder", "openvino").name == "encoder.xml"
    assert export.path("encoder", "onnx").name == "encoder.onnx"
    assert export.path("aggregator", "openvino").name == "aggregator.onnx"


def test_who_was_refused_is_read_with_and_without_figures(write_export: WriteExport) -> None:
    manifest = write_export().manifest
    refused = (Refused("tensorrt", "beyond", manifest.parity[0]), Refused("torch", "no number"))
    manifest = replace(manifest, refused=refused)
    assert ExportManifest.from_json(manifest.to_json()) == manifest


def set_at(values: Any, path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for each in parents:
        values = values[int(each) if each.isdigit() else each]
    if value is None:
        del values[last]
    else:
        values[last] = value


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("manifest_version", 2, "manifest_version is 2; this version of Farrank reads 1"),
        ("manifest_version", None, "manifest_version is None"),
        ("colour", "red", "the manifest has the unknown key colour; known are format"),
        ("runtimes", [], "runtimes is empty; an export is served by at least 1"),
        ("refused", ["onnx"], r"the manifest: refused\[0\] is 'onnx'; it must be an object"),
        ("refused", [{"runtime": "tensorrt"}], r"refused\[0\] lacks the key reason"),
        ("refused", [{"runtime": "onnx", "reason": "slow"}], "refused names onnx, which runtimes names, too"),
        ("opset", None, "the manifest lacks the key opset"),
        ("opset", "20", "the manifest: opset is '20'; it must be of type int"),
        ("opset", True, "the manifest: opset is True; it must be of type int"),
        ("format", "tflite", "the manifest: format is 'tflite'; it must be one of onnx, tensorrt"),
        ("evidence", "vibes", "evidence is 'vibes'; it must be one of chunk_score, attention, leave_one_out"),
        ("graphs", [], r"graphs is \[\]; it must be an object"),
        ("graphs/encoder", None, "graphs lacks the key encoder"),
        ("graphs/encoder/inputs", "all", "graphs.encoder: inputs is 'all'; it must be a list"),
        ("graphs/encoder/shape", 3, "graphs.encoder has the unknown key shape"),
        ("graphs/encoder/file", "../encoder.onnx", "'../encoder.onnx' is no file inside the folder"),
        ("graphs/encoder/file", "other.onnx", "checksums lacks other.onnx, which graphs names"),
        ("checksums/encoder.xml", None, "checksums lacks encoder.xml, which graphs names"),
        ("sources//etc/passwd", "0", "is no file inside the folder"),
        ("parity/0/spread", "wide", r"parity\[0\]: spread is 'wide'; it must be of type float"),
        ("parity/0/bound", None, r"parity\[0\] lacks the key bound"),
        ("parity/0/max_difference", math.nan, r"parity\[0\]: max_difference must be a finite number"),
        ("parity/0/spread", math.inf, r"parity\[0\]: spread must be a finite number"),
        ("parity/0/kendall_tau", 10**400, r"parity\[0\]: kendall_tau must be a finite number"),
        ("profiles/encoder/0/input_ids/optimum", 4, "input_ids: optimum is 4; it must be a list"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(
    write_export: WriteExport, path: str, value: Any, complaint: str
) -> None:
    file = write_export().folder / MANIFEST
    values = json.loads(file.read_text())
    if path.startswith("sources/"):
        values["sources"][path.removeprefix("sources/")] = value
    else:
        set_at(values, path, value)
    file.write_text(json.dumps(values))
    with pytest.raises(ExportError, match=complaint) as raised:
        Export.read(file.parent)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_what_is_no_manifest_is_refused(write_export: WriteExport, text: str) -> None:
    file = write_export().folder / MANIFEST
    file.write_text(text)
    with pytest.raises(ExportError, match=r"manifest\.json"):
        Export.read(file.parent)


def test_a_whole_number_serves_as_a_float(write_export: WriteExport) -> None:
    values = json.loads(write_export().manifest.to_json())
    values["parity"][0]["kendall_tau"] = 1
    found = ExportManifest.from_json(json.dumps(values)).parity[0].kendall_tau
    assert (found, type(found)) == (1.0, float)
