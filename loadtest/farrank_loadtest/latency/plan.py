"""The plan for each load: durations, repeats, latency objective, and caps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from farrank_loadtest.errors import LoadtestError


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits on the calls sent: at once, per second, and in total. A separate flag raises each limit."""

    rate_per_s: float = 2500.0
    callers: int = 256
    in_flight: int = 2000
    calls: int = 1_000_000
    seconds: float = 3600.0


FORM = "pPERCENT=DURATION with ms or s, such as p99=500ms"


@dataclass(frozen=True, slots=True)
class Objective:
    """`percent` of all calls must be answered within `bound_s`; a failed call counts as not answered."""

    percent: float
    bound_s: float

    def __str__(self) -> str:
        return f"p{self.percent:g} within {self.bound_s * 1e3:g} ms"

    def holds(self, good: int, offered: int) -> bool:
        """Tell whether `good` answers in time out of `offered` calls are enough."""
        # Without a division, so that 99 of 100 are exactly 99%. No call at all proves nothing.
        return offered > 0 and good * 100 >= self.percent * offered


def parse_objective(given: str) -> Objective:
    """Read an objective.

    Raises: LoadtestError saying what is allowed.
    """
    match = re.fullmatch(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(ms|s)", given)
    if match is None:
        raise LoadtestError(f"objective {given!r}: must be {FORM}")
    percent, bound_s = float(match[1]), float(match[2]) * (1e-3 if match[3] == "ms" else 1.0)
    if not 0 < percent <= 100 or not bound_s > 0:
        raise LoadtestError(
            f"objective {given!r}: the percent must be above 0 and at most 100, the duration above 0"
        )
    return Objective(percent, bound_s)


Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How each load is made and measured: `repeats` times, after `warm_up_s` for `duration_s`.

    `arrivals` names the open loop's schedule. `timeout_s` is each call's deadline.
    Raises: LoadtestError for an objective beyond the deadline.
    """

    loop: Loop
    objective: Objective | None
    arrivals: str = "poisson"
    warm_up_s: float = 5.0
    duration_s: float = 20.0
    repeats: int = 3
    timeout_s: float = 10.0
    seed: int = 1
    ranker: str = ""
    caps: Caps = field(default_factory=Caps)

    def __post_init__(self) -> None:
        if self.objective is not None and self.objective.bound_s > self.timeout_s:
            raise LoadtestError(f"objective {self.objective}: calls time out after {self.timeout_s:g} s")

    @property
    def end_s(self) -> float:
        """The time of a repeat's last call, from its start."""
        return self.warm_up_s + self.duration_s

    def check(self, amounts: Sequence[float], sent: int = 0, done: int = 0) -> None:
        """Raise LoadtestError if the caps forbid these loads, after `done` others that sent `sent` calls."""
        caps = self.caps
        for amount in amounts:
            if self.loop == "open" and not 0 < amount <= caps.rate_per_s:
                raise LoadtestError(
                    f"rate {amount:g}/s: must be above 0 and at most {caps.rate_per_s:g}/s (--max-rate)"
                )
            if self.loop == "closed" and not 1 <= amount <= caps.callers:
                raise LoadtestError(
                    f"callers {amount:g}: must be at least 1 and at most {caps.callers} (--max-callers)"
                )
        # The number of calls of waiting callers is not known in advance.
        calls = sent + (sum(amounts) * self.end_s * self.repeats if self.loop == "open" else 0.0)
        if calls > caps.calls:
            raise LoadtestError(f"{calls:,.0f} calls exceed the cap of {caps.calls:,} (--max-calls)")
        seconds = (done + len(amounts)) * self.repeats * self.end_s
        if seconds > caps.seconds:
            raise LoadtestError(
                f"{seconds:,.0f} s of load exceed the cap of {caps.seconds:,.0f} s (--max-load-s)"
            )

    @property
    def unit(self) -> str:
        """The unit of a load."""
        return "calls/s" if self.loop == "open" else "callers"

    def describe_load(self, amount: float) -> str:
        """Name a load."""
        return "1 caller" if self.loop == "closed" and amount == 1 else f"{amount:g} {self.unit}"
