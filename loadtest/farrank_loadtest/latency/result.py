"""What a sweep found: each load with its measurements, and the highest load that held the objective."""

from dataclasses import dataclass

from farrank_loadtest.latency.plan import Plan
from farrank_loadtest.latency.recorder import Recorder

# The generator is the limit where its own lateness is more than a busy machine's and a tenth of what it
# measures,
LAG_FLOOR_S = 0.010
LAG_SHARE = 0.1
# or, with callers that wait and are never late, where its thread hardly rests.
BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class StepResult:
    """One load: calls a second or callers, all repeats together and each, and whether the objective held.

    `held` is None where there is no objective, and where the load was interrupted or the server left: the
    calls still unanswered then may have been the late ones.
    """

    amount: float
    whole: Recorder
    repeats: tuple[Recorder, ...]
    held: bool | None
    generator_bound: bool


@dataclass(frozen=True, slots=True)
class Sweep:
    """All steps in the order they ran; `note` says why they ended before the objective decided.

    With `target_gone` it was because the server left: what broke last says nothing about load.
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
        """The highest load that held the objective below the first that broke it."""
        best = None
        for step in self.by_load:
            if not step.held:
                break
            best = step
        return best

    @property
    def limited_by(self) -> str | None:
        """What broke the objective first: the server or the generator; None where nothing did."""
        broke = next((step for step in self.by_load if step.held is False), None)
        if broke is None:
            return None
        return "generator" if broke.generator_bound else "server"


def judge(plan: Plan, amount: float, repeats: list[Recorder], *, undecided: bool = False) -> StepResult:
    """Put the repeats of one load together.

    A step whose generator was the limit does not hold an objective: it did not make the load.
    """
    whole = Recorder(0.0, 0.0, None)
    for repeat in repeats:
        whole.add(repeat)
    bound = is_generator_bound(plan, whole)
    if plan.objective is None or undecided:
        return StepResult(amount, whole, tuple(repeats), None, bound)
    held = plan.objective.holds(whole.good, whole.offered) and not bound
    return StepResult(amount, whole, tuple(repeats), held, bound)


def is_generator_bound(plan: Plan, measured: Recorder) -> bool:
    """Say whether this process, not the server, was the limit."""
    if plan.loop == "closed":
        return measured.busy > BUSY_SHARE
    return measured.lag.percentile_s(99) > max(LAG_FLOOR_S, LAG_SHARE * measured.latency.percentile_s(99))
