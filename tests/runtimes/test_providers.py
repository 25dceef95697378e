"""What is said where a provider is absent, or is there in name alone."""

import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from farrank_runtimes.onnx_runtime import INSTALL, NAMES, Provider, check_provider, open_session
from farrank_runtimes.runtime import RuntimeAbsent

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILT_WITH = list(NAMES.values())


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_that_is_not_built_in_names_the_command(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeAbsent) as refused:
        check_provider(provider)
    assert str(refused.value) == (
        f"the installed ONNX Runtime has no {NAMES[provider]}, only CPUExecutionProvider; {INSTALL[provider]}"
    )


def test_a_machine_without_onnx_runtime_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        RuntimeAbsent, match=r"^ONNX Runtime is not installed; pip install 'farrank\[onnx\]'$"
    ):
        check_provider("cpu")


def test_the_cpu_provider_is_here() -> None:
    check_provider("cpu")


@pytest.mark.parametrize("provider", ["cuda", "tensorrt"])
def test_a_provider_whose_libraries_are_not_found_is_not_replaced_by_the_cpu(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime opens such a session all the same, with the providers that are left."""
    seen: list[dict[str, object]] = []

    class Session:
        def __init__(self, graph: str, options: object, **given: object) -> None:
            seen.append(given)

        def disable_fallback(self) -> None:
            pass

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    class Options(SimpleNamespace):
        def add_session_config_entry(self, key: str, value: str) -> None:
            pass

    library = ModuleType("onnxruntime")
    vars(library).update(
        get_available_providers=lambda: BUILT_WITH,
        preload_dlls=lambda: None,
        InferenceSession=Session,
        SessionOptions=Options,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", library)
    with pytest.raises(RuntimeAbsent, match="libraries could not be loaded"):
        open_session(Path("graph.onnx"), provider, [(NAMES[provider], {"device_id": "0"})], threads=1)
    assert seen[0]["enable_fallback"] == 0
    assert seen[0]["providers"] == [(NAMES[provider], {"device_id": "0"})]


def test_the_extras_that_are_named_exist() -> None:
    for command in INSTALL.values():
        extra = command.rpartition("farrank[")[2].rstrip("]'")
        assert extra in PROJECT["optional-dependencies"]
