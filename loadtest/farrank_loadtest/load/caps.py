"""How much load a command may make: a slip of the finger must not flood anything."""

from dataclasses import dataclass

from farrank_loadtest.errors import LoadtestError


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
