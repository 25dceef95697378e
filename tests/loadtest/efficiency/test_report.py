"""Plot, CSV and table of given measurements: the facts that a reader must be able to see."""

from __future__ import annotations

import csv
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.text import Annotation, Text

from farrank_loadtest.efficiency.efficiency_chart import efficiency_chart
from farrank_loadtest.efficiency.efficiency_report import CSV, PNG, SVG, TABLE, write_report
from farrank_loadtest.efficiency.points import Gain, Point, all_gains, all_pairs, make_points
from farrank_loadtest.efficiency.published import PUBLISHED
from farrank_loadtest.efficiency.run_times import Results
from farrank_rankers.papers import paper_models
from support.efficiency_runs import CONDITIONS, measured

PAIRS = all_pairs(paper_models())


def points_of(run_times: dict[str, float], gains: dict[str, Gain] | None = None) -> list[Point]:
    found = {name: measured(name, PAIRS[name].firstp.name, time) for name, time in run_times.items()}
    return make_points(found, all_gains(gains or {}), PAIRS)


def test_every_ranker_of_the_papers_is_published() -> None:
    assert set(PUBLISHED) == set(PAIRS)


@pytest.mark.parametrize(("first", "spread"), [(2.4, 0.0), (2.4, 0.3), (1.1, 0.02), (0.8, 0.0)])
def test_no_label_covers_another_or_leaves_the_plot(first: float, spread: float) -> None:
    run_times = {name: first + spread * place for place, name in enumerate(PAIRS)}
    figure = efficiency_chart(CONDITIONS, points_of(run_times))
    figure.draw_without_rendering()

    axes = figure.axes[0]
    labels = [each for each in axes.texts if each.get_text()]
    assert len(labels) == len(PAIRS) + 1
    # Without the lines to the labels' points.
    boxes = [Text.get_window_extent(each) for each in labels]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1) for box in boxes)
    legend = axes.get_legend()
    assert legend is not None
    assert not any(box.overlaps(legend.get_window_extent()) for box in boxes)
    # Nor does any label cover a mark.
    marks = [line for line in axes.lines if line.get_marker() not in ("None", "")]
    assert len(marks) > len(PAIRS)
    places = [axes.transData.transform(each) for line in marks for each in line.get_xydata()]  # type: ignore[union-attr]
    assert not [place for place in places for box in boxes[1:] if box.contains(*place)]


def test_hollow_is_published_or_chance_filled_is_measured_and_arrows_come_from_the_papers_place() -> None:
    points = points_of(
        {"maxp-bert": 3.0, "avgp-bert": 2.5, "longp-jina": 3.5, "parade-max-bert": 2.7},
        {
            "maxp-bert": Gain(4.0, True, "measured: nDCG@10", 120, 0.002, significant=True),
            "parade-max-bert": Gain(5.0, True, "measured: nDCG@10", 120, 0.065),
        },
    )
    axes = efficiency_chart(CONDITIONS, points).axes[0]

    faces = {
        (line.get_xdata()[0], line.get_ydata()[0]): line.get_markerfacecolor()  # type: ignore[index]
        for line in axes.lines
        if line.get_markersize() == 8
    }
    assert faces == {
        (3.0, 4.0): "#0072B2",
        (2.5, 0.4): "white",
        (3.5, 2.0): "white",
        (2.7, 5.0): "white",
    }
    # AvgP has no run time in the papers, so no arrow leads to it.
    arrows = {
        each.xyann: each.xy for each in axes.texts if isinstance(each, Annotation) and not each.get_text()
    }
    assert arrows == {(2.4, 1.9): (3.0, 4.0), (4.71, 2.0): (3.5, 2.0)}
    legend = axes.get_legend()
    assert legend is not None
    told = [text.get_text() for text in legend.get_texts()]
    assert told[:2] == ["chunks, aggregated", "one long input"]
    assert "hollow: gain published by the papers or not significant" in told
    assert "filled: gain measured, significant" in told


def test_the_table_says_what_moved_and_what_it_is_made_of(tmp_path: Path) -> None:
    points = points_of(
        {"maxp-bert": 3.0, "avgp-bert": 2.5},
        {"avgp-bert": Gain(-0.5, True, "measured: RR", 1_000, 0.0004, significant=True)},
    )
    table = write_report(tmp_path, Results(CONDITIONS, "farrank loadtest efficiency", {}), points)

    rows = {cells[0]: cells for line in table.splitlines() if (cells := line.strip("| ").split(" | "))}
    rows = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    assert rows["maxp-bert"][1:] == [
        "firstp-bert",
        "3.00 (2.70 to 3.60)",
        "2.40",
        "1.25",
        "+1.9%",
        "–",
        "–",
        "published: Table 4",
        "8 / 2",
        "1,600 / 1,024",
        # 1,600 of 1,024 positions; 8 × 256 of 2 × 512; 3 × over 1.5625; 0.15 of 3 s.
        "4× inputs, 1.56× positions (2× if all were padded), 1.92× the time a position, aggregator 5%",
    ]
    assert rows["avgp-bert"][3:9] == ["–", "–", "−0.5%", "1,000", "below .001", "measured: RR"]
    assert "The documents of a call have 1,400, 600 tokens; the query: 'a query'." in table
    assert "a machine; cpu, fp32; farrank 0.1.0. Trained weights: none." in table
    assert (tmp_path / TABLE).read_text("utf-8") == table


def test_csv_and_pictures(tmp_path: Path) -> None:
    points = points_of(
        {"maxp-bert": 3.0, "parade-attn-bert": 2.5}, {"maxp-bert": Gain(4.0, True, "measured: RR")}
    )
    results = Results(CONDITIONS, "farrank loadtest efficiency", {})
    write_report(tmp_path, results, points)

    with (tmp_path / CSV).open(newline="") as file:
        maxp, parade = csv.DictReader(file)
    assert (maxp["ranker"], float(maxp["run_time"]), maxp["gain"]) == ("maxp-bert", 3.0, "measured")
    assert (float(maxp["gain_percent"]), float(maxp["published_gain_percent"])) == (4.0, 1.9)
    assert [float(each) for each in maxp["rounds_s"].split(";")] == pytest.approx([2.7, 3.0, 3.6])
    assert float(maxp["run_time_over_published"]) == pytest.approx(1.25)
    assert (parade["gain"], parade["published_run_time_lowest"], parade["published_run_time_highest"]) == (
        "published",
        "2.39",
        "2.5",
    )
    assert (tmp_path / PNG).read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / SVG).read_text("utf-8")
    # matplotlib draws letters as paths, and writes the text in comments.
    assert "<!-- PARADE Attn" in drawn
    write_report(tmp_path, results, points)
    assert (tmp_path / SVG).read_text("utf-8") == drawn


def test_nothing_measured_writes_nothing(tmp_path: Path) -> None:
    assert write_report(tmp_path, Results(CONDITIONS, "farrank", {}), []) == ""
    assert list(tmp_path.iterdir()) == []
