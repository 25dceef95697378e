"""Several targets in one run: each load is measured at all of them before the next one."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from farrank_loadtest.latency.plan import Plan
from farrank_loadtest.latency.recorder import duration_text
from farrank_loadtest.latency.steps import upwards
from farrank_loadtest.latency.sweep import StepResult, Sweep, SweepWatcher, sweep
from farrank_loadtest.targets import Target
from farrank_loadtest.workloads import Workload


async def measure_in_turn(
    targets: Sequence[tuple[Target, Plan]],
    workload: Workload,
    amounts: Sequence[float],
    watcher: SweepWatcher,
) -> list[Sweep]:
    """Measure one load after the other, each at all targets, with a plan for each; return their results.

    The plans differ at most in their rankers.

    A target that breaks the objective gets no higher load, as in a separate sweep; an interruption, or a
    target that becomes unreachable, ends the run for all. The caps hold for each target at each load.
    """
    found = [Sweep(plan, (), False, None) for _, plan in targets]
    for amount in sorted(set(amounts)):
        for place, (target, plan) in enumerate(targets):
            so_far = found[place]
            if any(step.held is False for step in so_far.steps):
                continue
            one = await sweep(target, workload, plan, upwards([amount]), watcher)
            found[place] = replace(one, steps=(*so_far.steps, *one.steps))
            if one.interrupted or one.target_gone:
                return found
    return found


def compared(names: Sequence[str], sweeps: Sequence[Sweep]) -> Iterator[str]:
    """Compare the others with the first target at each load: calls answered in time, and medians."""
    first, *others = sweeps
    for base in first.by_load:
        for name, other in zip(names[1:], others, strict=True):
            beside = next((step for step in other.steps if step.amount == base.amount), None)
            if beside is None or not _is_answered(base) or not _is_answered(beside):
                continue
            share = beside.whole.goodput_per_s / base.whole.goodput_per_s
            more_s = beside.whole.latency.percentile_s(50) - base.whole.latency.percentile_s(50)
            load, sign = first.plan.describe_load(base.amount), "more" if more_s >= 0 else "less"
            yield (
                f"{load}: {name} answers {share:.3f} times as many calls as {names[0]}; "
                f"its median call takes {duration_text(abs(more_s))} {sign}"
            )


def _is_answered(step: StepResult) -> bool:
    return step.whole.latency.count > 0 and step.whole.goodput_per_s > 0
