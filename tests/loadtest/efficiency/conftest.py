"""The papers' rankers on tiny backbones, a collection of articles, and the command as a function."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_loadtest.efficiency.run_times import Conditions, Measured, Timed
from farrank_rankers.papers import models
from farrank_rankers.papers.models import BACKBONES

if TYPE_CHECKING:
    from tests.conftest import Outcome

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
# The same change, made by a process of its own that then runs the command.
SCRIPT = f"""
import sys
from farrank_cli.main import main
from farrank_rankers.papers import models
models.BACKBONES = {{name: {{**config, **{TINY!r}}} for name, config in models.BACKBONES.items()}}
sys.exit(main(["loadtest", "efficiency", *sys.argv[1:]]))
"""
PASSAGE = "The tower stands over the harbour, and the ships that sail to the sea pass below it. " * 20


@pytest.fixture
def tiny_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the papers' models small; only those whose size is all in these keys are measured."""
    tiny = {name: {**config, **TINY} for name, config in BACKBONES.items()}
    monkeypatch.setattr(models, "BACKBONES", tiny)


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four articles of five passages, 1,900 tokens each; passages stand in the wrong order."""
    path = tmp_path_factory.mktemp("articles") / "passages.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {"pid": f"{article}_{pos}", "article": article, "pos": pos, "text": f"{pos}. {PASSAGE}"}
            )
            + "\n"
            for article in ("a", "b", "c", "d")
            for pos in (4, 2, 0, 1, 3)
        )
    )
    return path


@pytest.fixture
def efficiency(farrank: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """`farrank loadtest efficiency` as a function."""
    return partial(farrank, "loadtest", "efficiency")


def start(*flags: object) -> subprocess.Popen[str]:
    """Run it in a process of its own, on tiny backbones."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *map(str, flags)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


CONDITIONS = Conditions(
    machine="a machine",
    versions={"farrank": "0.1.0"},
    precision="fp32",
    device="cpu",
    settings=("--device=cpu",),
    query="a query",
    documents={"a": 1400, "b": 600},
    rounds=3,
    trained={},
)


def measured(ranker: str, firstp: str, run_time: float) -> Measured:
    """A ranker of 8 inputs, 1,600 positions, against a FirstP of 2 inputs, 1,024 positions and one second."""
    mine = Timed(
        client_s=(run_time * 0.9, run_time, run_time * 1.2),
        encoder_s=(run_time * 0.8,) * 3,
        aggregator_s=(run_time * 0.05,) * 3,
        inputs=8,
        chunks=8,
        padded_tokens=1600,
    )
    first = Timed((1.0, 1.0, 1.0), (0.8,) * 3, (0.0,) * 3, inputs=2, chunks=2, padded_tokens=1024)
    return Measured(ranker, firstp, mine, first, ranker_longest=256, firstp_longest=512)
