"""What is done at each load."""

from dataclasses import dataclass, field
from typing import Literal

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.latency.objective import Objective
from farrank_loadtest.load.caps import Caps
from farrank_loadtest.load.schedule import SCHEDULES

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
