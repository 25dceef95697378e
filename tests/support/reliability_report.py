"""The report of a chaos or soak run, as Markdown for people and JSON for programs."""

import json
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_runtimes.cores import usable_cores

if TYPE_CHECKING:
    from support.mixed_load import MixedLoad
    from support.sick_parts import Chaos


def machine() -> str:
    """Describe the machine."""
    return f"{usable_cores()} cores ({platform.machine()}), Python {platform.python_version()}"


def write_chaos_report(path: Path, chaos: "Chaos", seed: int, seconds: float) -> None:
    """Write PATH.md and PATH.json."""
    by_name = defaultdict[str, list[float]](list)
    for each in chaos.history:
        by_name[each.name].append(each.recovery_s)
    recoveries = {
        name: {"times": len(found), "median_s": statistics.median(found), "worst_s": max(found)}
        for name, found in sorted(by_name.items())
    }
    calls = Counter[str]()
    for (kind, ended), count in chaos.load.counts().items():
        calls[f"{kind}: {ended}"] = count
    figures: dict[str, Any] = {
        "seed": seed,
        "seconds": seconds,
        "machine": machine(),
        "calls": dict(sorted(calls.items())),
        "reruns": chaos.server.metric("farrank_reruns_total"),
        "wrong": chaos.load.wrong,
        "recoveries": recoveries,
    }
    path.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    path.with_suffix(".md").write_text("\n".join(_chaos_lines(figures)) + "\n")


def _chaos_lines(figures: dict[str, Any]) -> Iterator[str]:
    calls = figures["calls"]
    total = sum(calls.values())
    yield f"# Chaos: {figures['seconds'] / 60:.0f} minutes, seed {figures['seed']}"
    yield ""
    yield f"{figures['machine']}, shared with other work. {total:,} calls, of which {figures['reruns']:.0f}"
    yield "ran again after a failure of their device. Wrong, lost or refused without a documented reason:"
    yield f"{len(figures['wrong'])}."
    yield ""
    yield "| failure | times | recovery, median | worst |"
    yield "| --- | ---: | ---: | ---: |"
    for name, found in figures["recoveries"].items():
        yield f"| {name} | {found['times']} | {found['median_s']:.2f} s | {found['worst_s']:.2f} s |"
    yield ""
    yield "| calls | ended | number |"
    yield "| --- | --- | ---: |"
    for name, count in calls.items():
        kind, _, ended = name.partition(": ")
        yield f"| {kind} | {ended} | {count:,} |"
    if figures["wrong"]:
        yield ""
        yield from (f"- {each}" for each in figures["wrong"][:50])


def write_soak_report(
    path: Path,
    load: "MixedLoad",
    seconds: float,
    samples: Mapping[tuple[str, str], list[tuple[float, float]]],
    grown: Mapping[tuple[str, str], float],
) -> None:
    """Write PATH.md and PATH.json. `samples` are seconds and values, by process and quantity."""
    rows = [
        {
            "process": process,
            "what": what,
            "first": samples[process, what][0][1],
            "median": statistics.median(value for _, value in samples[process, what]),
            "most": max(value for _, value in samples[process, what]),
            "grew": grew,
        }
        for (process, what), grew in grown.items()
    ]
    figures = {
        "seconds": seconds,
        "machine": machine(),
        "calls": len(load.outcomes),
        "wrong": load.wrong,
        "rows": rows,
    }
    path.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    lines = [
        f"# Soak: {seconds / 60:.0f} minutes",
        "",
        f"{machine()}, shared with other work. {len(load.outcomes):,} calls, {len(load.wrong)} wrong.",
        "",
        "| process | quantity | first | median | largest | growth by the slope |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['process']} | {row['what']} | {row['first']:.0f} | {row['median']:.0f} | {row['most']:.0f} "
        f"| {row['grew']:+.2f} |"
        for row in rows
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
