import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import MANIFEST, Export
from farrank_rankers.exports.manifest import ExportManifest, RefusedRuntime, sealed

WriteExport = Callable[..., Export]


def test_a_written_manifest_is_read_back(write_export: WriteExport) -> None:
    export = write_export()
    assert Export.read(export.folder) == export
    assert export.manifest.name == "onnx-fp32"
    assert export.path("encoder", "openvino").name == "encoder.xml"
    assert export.path("encoder", "onnx").name == "encoder.onnx"
    assert export.path("aggregator", "openvino").name == "aggregator.onnx"


def test_refused_runtimes_are_read_with_and_without_figures(write_export: WriteExport) -> None:
    manifest = write_export().manifest
    refused = (RefusedRuntime("tensorrt", "beyond", manifest.parity[0]), RefusedRuntime("torch", "no number"))
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
        ("manifest_version", 1, "manifest_version is 1; this version of Farrank reads 2"),
        ("manifest_version", None, "manifest_version is None"),
        ("colour", "red", "the manifest has the unknown key colour; known are format"),
        ("runtimes", [], "runtimes is empty; an export is served by at least 1"),
        ("refused", ["onnx"], r"refused\[0\] is 'onnx'; it must be an object"),
        ("refused", [{"runtime": "tensorrt"}], r"refused\[0\] lacks the key reason"),
        ("refused", [{"runtime": "onnx", "reason": "slow"}], "refused names onnx, which runtimes names, too"),
        ("opset", None, "the manifest lacks the key opset"),
        ("opset", "20", "opset is '20'; it must be a whole number"),
        ("opset", True, "opset is True; it must be a whole number"),
        ("opset", 0, "opset is 0; it must be at least 1"),
        ("family", "minp", "family is 'minp'; it must be one of firstp, longp"),
        (
            "runtimes",
            ["onnx", "torch"],
            "runtimes names 'torch', which serves the ranker itself",
        ),
        ("format", "tflite", "format is 'tflite'; it must be one of onnx, tensorrt"),
        ("evidence", "vibes", "evidence is 'vibes'; it must be one of chunk_score, attention, leave_one_out"),
        ("graphs", [], r"graphs is \[\]; it must be an object"),
        ("graphs/encoder", None, "graphs lacks the key encoder"),
        ("graphs/encoder/inputs", "all", "graphs.encoder.inputs is 'all'; it must be a list"),
        ("graphs/encoder/shape", 3, "graphs.encoder has the unknown key shape"),
        ("graphs/encoder/file", "../encoder.onnx", "'../encoder.onnx' is not a file inside the folder"),
        ("graphs/encoder/file", "other.onnx", "checksums lacks other.onnx, which graphs names"),
        ("checksums/encoder.xml", None, "checksums lacks encoder.xml, which graphs names"),
        ("sources//etc/passwd", "0", "is not a file inside the folder"),
        ("parity/0/spread", "wide", r"parity\[0\].spread is 'wide'; it must be a number"),
        ("parity/0/bound", None, r"parity\[0\] lacks the key bound"),
        ("parity/0/max_difference", math.nan, r"parity\[0\].max_difference must be a finite number"),
        ("parity/0/spread", math.inf, r"parity\[0\].spread must be a finite number"),
        ("parity/0/kendall_tau", 10**400, r"parity\[0\].kendall_tau must be a finite number"),
        ("parity/0/kendall_tau", 1.5, "kendall_tau is 1.5; it must be from -1 to 1"),
        ("parity/0/top10_overlap", -0.5, "top10_overlap is -0.5; it must be from 0 to 1"),
        ("parity/0/documents", -1, "documents is -1; it must be at least 0"),
        ("parity/0/mean_difference", -1e-9, "mean_difference is -1e-09; it must be at least 0"),
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
    file.write_text(json.dumps(sealed(values)))
    with pytest.raises(ExportError, match=complaint) as raised:
        Export.read(file.parent)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_an_invalid_manifest_is_refused(write_export: WriteExport, text: str) -> None:
    file = write_export().folder / MANIFEST
    file.write_text(text)
    with pytest.raises(ExportError, match=r"manifest\.json"):
        Export.read(file.parent)


def test_a_whole_number_serves_as_a_float(write_export: WriteExport) -> None:
    values = json.loads(write_export().manifest.to_json())
    values["parity"][0]["kendall_tau"] = 1
    found = ExportManifest.from_json(json.dumps(sealed(values))).parity[0].kendall_tau
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("precision", "int8"),
        ("family", "sump"),
        ("evidence", "attention"),
        ("opset", 21),
        ("graphs/encoder/file", "aggregator.onnx"),
        ("graphs/encoder/variants", {}),
        ("runtimes", ["onnx"]),
        ("weights_digest", "0" * 64),
        ("source_version", "0" * 16),
        ("created_with/torch", "2.12.0"),
        ("sources", {}),
        ("parity", []),
        ("parity/0/kendall_tau", 0.99),
        ("parity/0/bound", None),
        ("checksums/encoder.onnx", "0" * 64),
        ("digest", "0" * 64),
        ("digest", 0),
    ],
)
def test_a_manifest_that_was_changed_is_refused_with_its_name(
    write_export: WriteExport, path: str, value: Any
) -> None:
    file = write_export().folder / MANIFEST
    values = json.loads(file.read_text())
    set_at(values, path, value)
    file.write_text(json.dumps(values))
    with pytest.raises(ExportError, match=r"changed since .*; farrank export --force exports") as raised:
        Export.read(file.parent)
    assert str(raised.value).startswith(f"{file}: ")


def test_a_manifest_without_its_digest_is_refused(write_export: WriteExport) -> None:
    file = write_export().folder / MANIFEST
    values = json.loads(file.read_text())
    del values["digest"]
    file.write_text(json.dumps(values))
    with pytest.raises(
        ExportError, match=r"manifest\.json: the manifest lacks the key digest; farrank export"
    ):
        Export.read(file.parent)


def test_the_layout_of_a_manifest_is_free(write_export: WriteExport) -> None:
    manifest = write_export().manifest
    values = json.loads(manifest.to_json())
    assert ExportManifest.from_json(json.dumps(dict(reversed(values.items())))) == manifest


def test_profiles_of_older_exports_are_passed_over(write_export: WriteExport) -> None:
    manifest = write_export().manifest
    values = json.loads(manifest.to_json()) | {"profiles": {"encoder": []}}
    assert ExportManifest.from_json(json.dumps(sealed(values))) == manifest


def test_any_flipped_bit_is_noticed(write_export: WriteExport) -> None:
    text = write_export().manifest.to_json()
    unnoticed = []
    for place, character in enumerate(text):
        changed = text[:place] + chr(ord(character) ^ 1) + text[place + 1 :]
        try:
            ExportManifest.from_json(changed)
        except ExportError:
            continue
        unnoticed.append(text[max(place - 20, 0) : place + 20])
    assert unnoticed == []
