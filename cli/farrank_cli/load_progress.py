"""Say on stderr how far a sweep is: the load that runs, and each that is done."""

import sys

from farrank_cli.terminal import Progress
from farrank_loadtest.latency.plan import Plan
from farrank_loadtest.latency.recorder import duration_text
from farrank_loadtest.latency.sweep import StepResult


class LoadProgress:
    """Hears a sweep and shows it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._progress = Progress("calls")

    def began(self, amount: float, repeat: int) -> None:
        """Show the load and the repeat."""
        load = self._plan.describe_load(amount)
        self._progress.end()
        self._progress = Progress(f"calls answered at {load} (repeat {repeat} of {self._plan.repeats})")

    def counted(self, answered: int) -> None:
        """Show the count."""
        self._progress(answered)

    def finished(self, result: StepResult) -> None:
        """Leave a line for the load."""
        self._progress.end()
        print(summary(self._plan, result), file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line clear."""
        self._progress.end()


def summary(plan: Plan, result: StepResult) -> str:
    """Tell one load in a line: what failed and why, then how fast the answered calls were."""
    whole = result.whole
    words = [f"{plan.describe_load(result.amount)}: {whole.goodput_per_s:.4g} good/s"]
    if whole.failed:
        words.append(whole.failures)
    answered = whole.latency.count
    if answered:
        # A percentile that no answer lies beyond is but the slowest answer.
        known = [percent for percent in (50, 99, 99.9) if answered * (100 - percent) >= 100]
        times = [f"p{percent:g} {duration_text(whole.latency.percentile_s(percent))}" for percent in known]
        times.append(f"max {duration_text(whole.latency.max_s)}")
        words.append((f"the {answered:,} answered: " if whole.failed else "") + ", ".join(times))
    if result.generator_bound:
        words.append("generator-bound")
    elif result.held is not None:
        words.append("holds" if result.held else "breaks the objective")
    return ", ".join(words)
