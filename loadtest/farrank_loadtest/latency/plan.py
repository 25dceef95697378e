"""What is done at each load: how long, how often, with which latency objective, and within which caps."""

import re
from dataclasses import dataclass, field
from typing import Literal

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.loops import SCHEDULES


@dataclass(frozen=True, slots=True)
class Caps:
    """The most that is sent: at once, each second, and in all. Each is raised by a flag of its own."""

    rate_per_s: float = 2500.0
    callers: int = 256
    in_flight: int = 2000
    calls: int = 1_000_000
    seconds: float = 3600.0

    def check_rate(self, rate_per_s: float) -> None:
        """Raise LoadtestError for a rate beyond the cap, or that is none."""
        if not 0 < rate_per_s <= self.rate_per_s:
            raise LoadtestError(
                f"rate {rate_per_s:g}/s: must be above 0 and at most {self.rate_per_s:g}/s (--max-rate)"
            )

    def check_callers(self, callers: float) -> None:
        """Raise LoadtestError for more callers than the cap, or for none."""
        if not 1 <= callers <= self.callers:
            raise LoadtestError(
                f"callers {callers:g}: must be at least 1 and at most {self.callers} (--max-callers)"
            )

    def check_total(self, calls: float, seconds: float) -> None:
        """Raise LoadtestError if all steps together are planned to send or to take too much."""
        if calls > self.calls:
            raise LoadtestError(f"{calls:,.0f} calls are more than {self.calls:,} (--max-calls)")
        if seconds > self.seconds:
            raise LoadtestError(
                f"{seconds:,.0f} s of load are more than {self.seconds:,.0f} s (--max-load-s)"
            )


FORM = "pPERCENT=DURATION with ms or s, such as p99=500ms"
_UNITS_S = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Objective:
    """`percent` of all calls are answered within `bound_s`; a failed call is one that was not."""

    percent: float
    bound_s: float

    def __str__(self) -> str:
        return f"p{self.percent:g} within {self.bound_s * 1e3:g} ms"

    def holds(self, good: int, offered: int) -> bool:
        """Say whether so many answers in time out of so many calls are enough."""
        # Without a division, so that 99 of 100 are 99%. Nothing offered proves nothing.
        return offered > 0 and good * 100 >= self.percent * offered


def parse_objective(given: str) -> Objective:
    """Read an objective.

    Raises: LoadtestError saying what is allowed.
    """
    match = re.fullmatch(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(ms|s)", given)
    if match is None:
        raise LoadtestError(f"objective {given!r}: must be {FORM}")
    percent, bound_s = float(match[1]), float(match[2]) * _UNITS_S[match[3]]
    if not 0 < percent <= 100 or not bound_s > 0:
        raise LoadtestError(
            f"objective {given!r}: the percent is above 0 and at most 100, the duration above 0"
        )
    return Objective(percent, bound_s)


Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How each load is made and measured: `repeats` times `warm_up_s` uncounted and `duration_s` counted.

    `arrivals` names the open loop's schedule. `timeout_s` is each call's deadline.
    Raises: LoadtestError naming the value that cannot be.
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
        if self.arrivals not in SCHEDULES:
            raise LoadtestError(f"arrivals {self.arrivals!r}: must be one of {', '.join(SCHEDULES)}")
        if not self.warm_up_s >= 0:
            raise LoadtestError(f"warm-up {self.warm_up_s:g} s: must not be below 0")
        for name, value in (("duration", self.duration_s), ("timeout", self.timeout_s)):
            if not value > 0:
                raise LoadtestError(f"{name} {value:g} s: must be above 0")
        if self.repeats < 1:
            raise LoadtestError(f"repeats {self.repeats}: must be at least 1")
        if self.objective is not None and self.objective.bound_s > self.timeout_s:
            raise LoadtestError(f"objective {self.objective}: calls time out after {self.timeout_s:g} s")

    @property
    def bound_s(self) -> float | None:
        """Within which an answer is in time; None where nothing but the timeout says so."""
        return None if self.objective is None else self.objective.bound_s

    @property
    def end_s(self) -> float:
        """When a repeat's last call is due, from its start."""
        return self.warm_up_s + self.duration_s

    def seconds(self, steps: int) -> float:
        """How long so many steps send calls."""
        return steps * self.repeats * self.end_s

    def calls(self, amount: float) -> float:
        """How many calls a step sends: as the schedule makes them, or as many as the callers manage."""
        return amount * self.end_s * self.repeats if self.loop == "open" else 0.0

    def check_amount(self, amount: float) -> None:
        """Raise LoadtestError if the caps forbid a step of this rate, or of so many callers."""
        if self.loop == "open":
            self.caps.check_rate(amount)
        else:
            self.caps.check_callers(amount)

    def describe_load(self, amount: float) -> str:
        """Name a load."""
        if self.loop == "open":
            return f"{amount:g} calls/s"
        return "1 caller" if amount == 1 else f"{amount:g} callers"
