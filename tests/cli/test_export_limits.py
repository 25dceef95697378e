"""The bounds of `--export auto`: their flags, and the ranker that is served where no export keeps them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SERVE = ("serve", "--check", "--export=auto", "--port=0", "--metrics-port=none", "--device=cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARRANK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("flags", "bounds", "reason"),
    [
        (["--export-minutes=0.001"], "1.0 GiB and 0.001 minutes", "it takes more than 0.001 minutes"),
        (["--export-memory=0.01"], "0.0 GiB and 10 minutes", "its bound is 0.0 GiB"),
    ],
)
def test_torch_serves_a_ranker_whose_exports_go_beyond_the_bounds(
    farrank: Callable[..., Any],
    tiny_rankers: dict[str, Path],
    caplog: pytest.LogCaptureFixture,
    flags: list[str],
    bounds: str,
    reason: str,
) -> None:
    with caplog.at_level("INFO"):
        outcome = farrank(*SERVE, f"--ranker=mine={tiny_rankers['maxp']}", *flags, "--log-level=info")
    logged = caplog.text + outcome.err
    assert f"ranker mine: an export may take at most {bounds} in each precision" in logged
    assert reason in logged
    assert "ranker mine is served without an export: none keeps its bounds" in logged
    assert (outcome.exit_code, "torch on cpu in fp32" in outcome.out) == (0, True)


@pytest.mark.parametrize("flag", ["--export-minutes", "--export-memory"])
def test_a_bound_is_above_zero(farrank: Callable[..., Any], flag: str) -> None:
    outcome = farrank(*SERVE, "--ranker=mine=embedded", f"{flag}=0")
    assert outcome.exit_code == 2
    assert f"argument {flag}: 0 is not above 0" in outcome.err
