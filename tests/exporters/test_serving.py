"""Exports that the server makes are those that it chooses from."""

from typing import get_args

import pytest

from farrank_exporters.export import runtimes_for
from farrank_rankers.exports.manifest import ExportFormat, ExportPrecision
from farrank_runtimes.runtime_table import readers_of


@pytest.mark.parametrize("form", get_args(ExportFormat))
@pytest.mark.parametrize("precision", get_args(ExportPrecision))
def test_every_export_has_a_runtime(form: ExportFormat, precision: ExportPrecision) -> None:
    assert readers_of(form, precision)


def test_an_export_is_measured_with_every_runtime_that_reads_it() -> None:
    assert runtimes_for("onnx", "fp32") == ("onnx", "openvino")
    assert runtimes_for("onnx", "fp16") == ("onnx",)
