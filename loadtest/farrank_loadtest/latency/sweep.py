"""A sweep: loads measured one after the other, and the highest that holds the objective.

Measurements are kept even if the sweep is interrupted or the server becomes unreachable.
"""

import asyncio
import itertools
import random
import time
from dataclasses import dataclass
from typing import Protocol

from farrank_loadtest.errors import LoadtestError, TargetFailed
from farrank_loadtest.latency.plan import Plan
from farrank_loadtest.latency.recorder import Recorder
from farrank_loadtest.latency.steps import Steps
from farrank_loadtest.loops import SCHEDULES, Sample, run_closed, run_open, started_clock
from farrank_loadtest.targets import Answer, Target, TargetError
from farrank_loadtest.workloads import Call, Workload

# Statuses of a call to a missing server.
GONE = frozenset({"UNAVAILABLE", "unreachable", "connection lost"})
# The first call to a server may load or compile what later calls reuse.
PROBE_TIMEOUT_S = 60.0
# In an open loop the generator is the limit if its lag exceeds that of a busy machine and a tenth of the
# latency that it measures;
LAG_FLOOR_S = 0.010
LAG_SHARE = 0.1
# in a closed loop, where callers are never late, if its thread is nearly always busy.
BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StepResult:
    """One load: calls a second or callers, all repeats together and each, and whether the objective held.

    `held` is None without an objective, and if the load was interrupted or the server became unreachable:
    the calls without an answer may have been the late ones.
    """

    amount: float
    whole: Recorder
    repeats: tuple[Recorder, ...]
    held: bool | None
    generator_bound: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """All steps in the order in which they ran; `note` says why they ended before the objective decided.

    With `target_gone` the server became unreachable, so the last failure says nothing about load.
    """

    plan: Plan
    steps: tuple[StepResult, ...]
    interrupted: bool
    note: str | None
    target_gone: bool = False

    @property
    def by_load(self) -> tuple[StepResult, ...]:
        """The steps from the lowest load up."""
        return tuple(sorted(self.steps, key=lambda step: step.amount))

    @property
    def highest(self) -> StepResult | None:
        """The highest load below the first one that broke the objective."""
        held = list(itertools.takewhile(lambda step: step.held, self.by_load))
        return held[-1] if held else None

    @property
    def limited_by(self) -> str | None:
        """The cause of the first broken objective: "server" or "generator"; None if none broke."""
        broke = next((step for step in self.by_load if step.held is False), None)
        if broke is None:
            return None
        return "generator" if broke.generator_bound else "server"


def judge(plan: Plan, amount: float, repeats: list[Recorder], *, undecided: bool = False) -> StepResult:
    """Combine the repeats of one load.

    If the generator was the limit, the step does not hold the objective: the load was not reached.
    """
    whole = Recorder(0.0, 0.0, None)
    for repeat in repeats:
        whole.add(repeat)
    bound, held = is_generator_bound(plan, whole), None
    if plan.objective is not None and not undecided:
        held = plan.objective.holds(whole.good, whole.offered) and not bound
    return StepResult(amount, whole, tuple(repeats), held, bound)


def is_generator_bound(plan: Plan, measured: Recorder) -> bool:
    """Tell whether this process, not the server, was the limit."""
    if plan.loop == "closed":
        return measured.busy > BUSY_SHARE
    return measured.lag.percentile_s(99) > max(LAG_FLOOR_S, LAG_SHARE * measured.latency.percentile_s(99))


class SweepWatcher(Protocol):
    """Receives a sweep's progress. A subclass overrides the methods that it needs.

    The returns keep the methods from counting as abstract.
    """

    def began(self, amount: float, repeat: int) -> None:
        """A repeat (from 1) of a load begins."""
        return

    def counted(self, answered: int) -> None:
        """`answered` calls of this repeat have ended."""
        return

    def finished(self, result: StepResult) -> None:
        """All repeats of a load are done."""
        return


class SilentSweepWatcher(SweepWatcher):
    """Ignores a sweep's progress."""


async def probe(
    target: Target, workload: Workload, plan: Plan, *, timeout_s: float = PROBE_TIMEOUT_S
) -> None:
    """Send the first call alone, with the later of `timeout_s` and the plan's deadline.

    Raises: TargetFailed if it is not answered.
    """
    call = workload.calls[0]
    timeout_s = max(plan.timeout_s, timeout_s)
    try:
        await target.rerank(call.query, call.documents, ranker=plan.ranker, timeout_s=timeout_s)
    except TargetError as error:
        raise TargetFailed(error.message, error.status) from error


async def sweep(target: Target, workload: Workload, plan: Plan, steps: Steps, watcher: SweepWatcher) -> Sweep:
    """Measure one load after the other until the server is gone, a cap is reached or `steps` end.

    Cancelling the task returns the measurements so far.
    """
    calls = itertools.cycle(workload.calls)
    bound_s = None if plan.objective is None else plan.objective.bound_s
    results: list[StepResult] = []
    sent, held = 0, None
    interrupted, gone, note = False, None, None

    async def ask(call: Call) -> Answer:
        return await target.rerank(call.query, call.documents, ranker=plan.ranker, timeout_s=plan.timeout_s)

    async def send(amount: float, repeat: int, recorder: Recorder) -> None:
        def count(sample: Sample) -> None:
            recorder(sample)
            watcher.counted(recorder.seen)

        now_s, busy_before_s = started_clock(), time.thread_time()
        try:
            if plan.loop == "open":
                randomly = random.Random(f"{plan.seed}/{repeat}/{amount:g}")
                arrivals = SCHEDULES[plan.arrivals](amount, plan.end_s, randomly)
                await run_open(ask, calls, arrivals, count, now_s, max_in_flight=plan.caps.in_flight)
                # No call is due any more, but rates are over the whole planned time.
                await asyncio.sleep(max(0.0, plan.end_s - now_s()))
            else:
                most = plan.caps.calls - sent
                await run_closed(ask, calls, int(amount), plan.end_s, count, now_s, max_calls=most)
        finally:
            recorder.ended(now_s(), time.thread_time() - busy_before_s)
        if GONE & recorder.statuses.keys():
            await probe(target, workload, plan, timeout_s=0.0)

    while not interrupted and note is None:
        try:
            amount = steps.send(held)
            plan.check([amount], sent, len(results))
        except StopIteration:
            break
        except LoadtestError as error:
            note = str(error)
            break
        repeats: list[Recorder] = []
        while len(repeats) < plan.repeats and not interrupted and gone is None:
            recorder = Recorder(plan.warm_up_s, plan.end_s, bound_s)
            repeats.append(recorder)
            watcher.began(amount, len(repeats))
            try:
                await send(amount, len(repeats), recorder)
            except asyncio.CancelledError:
                interrupted = True
                if current := asyncio.current_task():
                    current.uncancel()
            except TargetFailed as error:
                gone = str(error)
            sent += recorder.seen
        measured = [each for each in repeats if each.offered]
        if measured:
            results.append(judge(plan, amount, measured, undecided=interrupted or gone is not None))
            watcher.finished(results[-1])
        held = bool(measured) and results[-1].held is not False
        if gone is not None:
            note = f"the server no longer answers: {gone}"
        elif sent >= plan.caps.calls and not interrupted:
            note = f"{sent:,} calls were sent (--max-calls)"
    return Sweep(plan, tuple(results), interrupted, note, target_gone=gone is not None)
