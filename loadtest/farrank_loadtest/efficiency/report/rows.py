"""The points as rows of a CSV: nothing rounded away, every round kept."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from farrank_loadtest.efficiency.points import Point


def as_csv(points: Sequence[Point]) -> str:
    """Give a line for each ranker; times are in seconds, rounds stand between semicolons."""
    rows = [_row(point) for point in points]
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def _row(point: Point) -> dict[str, Any]:
    measured = point.measured
    mine, first = measured.ranker_timed, measured.firstp_timed
    lowest, highest = measured.run_times
    published = point.published.run_time or (None, None)
    return {
        "ranker": measured.ranker,
        "title": point.published.title,
        "approach": point.approach,
        "firstp": measured.firstp,
        "run_time": measured.run_time,
        "run_time_lowest": lowest,
        "run_time_highest": highest,
        "published_run_time_lowest": published[0],
        "published_run_time_highest": published[1],
        "run_time_over_published": point.moved,
        "gain_percent": point.gain.percent,
        "gain": "measured" if point.gain.measured else "published",
        "gain_source": point.gain.source,
        "published_gain_percent": point.published.gain_percent,
        "seconds": mine.median_s,
        "firstp_seconds": first.median_s,
        "inputs": mine.inputs,
        "firstp_inputs": first.inputs,
        "padded_tokens": mine.padded_tokens,
        "firstp_padded_tokens": first.padded_tokens,
        "tokens_over_firstp": measured.tokens,
        "tokens_over_firstp_if_padded": measured.tokens_if_padded,
        "time_of_position_over_firstp": measured.cost_of_token,
        "aggregator_share": measured.aggregator_share,
        "rounds_s": _joined(mine.client_s),
        "firstp_rounds_s": _joined(first.client_s),
        "encoder_rounds_s": _joined(mine.encoder_s),
        "firstp_encoder_rounds_s": _joined(first.encoder_s),
        "aggregator_rounds_s": _joined(mine.aggregator_s),
    }


def _joined(values: Sequence[float]) -> str:
    return ";".join(map(str, values))
