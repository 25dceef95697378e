"""The papers' rankers on tiny backbones: the command in its own process, and results of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from farrank_loadtest.efficiency.run_times import Conditions, RankerTimes, RelativeTimes
from farrank_rankers.papers import BACKBONES
from support import forked

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
# The script makes the same change in its own process and then runs the command.
SCRIPT = f"""
import sys
from farrank_cli.main import main
from farrank_rankers import papers
papers.BACKBONES = {{name: {{**config, **{TINY!r}}} for name, config in papers.BACKBONES.items()}}
sys.exit(main(["loadtest", "efficiency", *sys.argv[1:]]))
"""


def tiny_backbones() -> dict[str, dict[str, Any]]:
    """Make the papers' backbones small. Only those are measured whose size depends on these keys alone."""
    return {name: {**config, **TINY} for name, config in BACKBONES.items()}


PASSAGE = "The tower stands over the harbour, and the ships that sail to the sea pass below it. " * 20


def start(*flags: object) -> forked.Popen[str]:
    """Run the command in its own process, on tiny backbones."""
    return forked.Popen(
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


def measured(ranker: str, firstp: str, run_time: float) -> RelativeTimes:
    """Results of a ranker of 8 inputs (1,600 positions) and a FirstP of 2 (1,024 positions, 1 second)."""
    mine = RankerTimes(
        client_s=(run_time * 0.9, run_time, run_time * 1.2),
        encoder_s=(run_time * 0.8,) * 3,
        aggregator_s=(run_time * 0.05,) * 3,
        inputs=8,
        chunks=8,
        padded_tokens=1600,
    )
    first = RankerTimes((1.0, 1.0, 1.0), (0.8,) * 3, (0.0,) * 3, inputs=2, chunks=2, padded_tokens=1024)
    return RelativeTimes(ranker, firstp, mine, first, ranker_longest=256, firstp_longest=512)
