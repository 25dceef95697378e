"""A section of which some was measured and some failed."""

from collections.abc import Sequence

from farrank_bench.rounds import Rounds
from farrank_bench.rows import Row


class PartlyFailed(RuntimeError):
    """Some of a section could not be measured; `rows` hold what was, and say what was not."""

    def __init__(self, message: str, rows: Sequence[Row]) -> None:
        super().__init__(message)
        self.rows = list(rows)


def whole(rows: list[Row], *found: Rounds) -> list[Row]:
    """Give a section's rows if no form of any rounds failed.

    Raises: PartlyFailed.
    """
    failed = [name for rounds in found for name in rounds.failed]
    if failed:
        raise PartlyFailed(f"failed: {'; '.join(dict.fromkeys(failed))}", rows)
    return rows
