"""The report: a table with the paper's figures, the findings with their rules, and charts of MRR by place."""

import lzma
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farrank_experiments.asking import Values
from farrank_experiments.contenders import CONTENDERS, FIRSTP, RAND
from farrank_experiments.contrasts import ALPHA, POWER
from farrank_experiments.doses import dose_section
from farrank_experiments.findings import MEASURES, Chance, Finding, Judge, by_place, measured
from farrank_experiments.plan import STAGES, ExperimentPlan, Track
from farrank_experiments.questions import BIASED, FAR
from farrank_experiments.settings import Settings
from farrank_loadtest.accuracy.accuracy_report import RANDOMISATION, T_TEST, Cell, ModelRow, Report
from farrank_loadtest.accuracy.evaluation import compare
from farrank_loadtest.figures import COLOURS, new_figure
from farrank_loadtest.kept_files import markdown_table, write_rows
from farrank_loadtest.machine import describe_machine, installed_versions
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.open import open_reader

PAGE, CSV, PICTURE = "README.md", "values.csv.xz", "mrr-by-place.png"
PACKAGES = ("farrank", "torch", "transformers", "accelerate")
TRACKS: Mapping[Track, str] = {
    "frozen": "Heads on a frozen encoder",
    "whole": "Encoder and aggregator trained",
}
Results = Mapping[Track, Mapping[str, Mapping[str, Sequence[Values]]]]


def write_page(folder: Path, plan: ExperimentPlan, command: Sequence[str], *, quick: bool) -> str:
    """Write the page, the chart and all values; return the page. Raises: OSError if one cannot be written."""
    results: Results = {track: found for track, found in plan.results().items() if found}
    settings, w = plan.settings, plan.settings.windows
    folder.mkdir(parents=True, exist_ok=True)
    doses = plan.dose_values() if plan.has_doses else {}
    parts = [_head(plan, command, quick=quick)]
    for track, found in results.items():
        parts.append(f"## {TRACKS[track]}\n\n{_track(found, settings)}")
        _accuracy(found, settings).write_json(folder / f"accuracy-{track}.json")
    places_chart(results, settings).savefig(folder / PICTURE)
    with lzma.open(folder / CSV, "wt", encoding="utf-8", newline="") as file:
        write_rows(file, _csv_rows([*results.items(), ("doses", {RAND: doses})]))
    parts.append(
        f"## By place of the relevant passage\n\n![MRR by place]({PICTURE})\n\n"
        f"All candidates have {w.most_chunks} chunks, with their relevant passages at the "
        f"same place among passages of other articles; the first {_positions(results):,} questions count. "
        "FirstP reads chunk 1. Where only one line is visible, both coincide. Bands reach from the lowest "
        "seed to the highest."
    )
    if doses:
        parts.append(f"## By bias in training\n\n{dose_section(doses, w.most_chunks)}")
    parts += [_learning(plan), _times(plan)]
    page = "\n\n".join(parts) + "\n"
    (folder / PAGE).write_text(page, encoding="utf-8")
    return page


def _head(plan: ExperimentPlan, command: Sequence[str], *, quick: bool) -> str:
    settings = plan.settings
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions(PACKAGES).items())
    facts = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_machine(),
        "versions": versions,
        "command": f"`{shlex.join(command)}`",
    }
    lines = ["# The papers' findings, reproduced at small scale", ""]
    if quick:
        lines += ["**A trial of the command (`--quick`): its figures mean nothing.**", ""]
    lines += [f"- {name}: {fact}" for name, fact in facts.items()]
    w = settings.windows
    lines += [
        "",
        f"SQuAD's articles become documents of 2 to {w.most_chunks} passages of {w.chunk_tokens} tokens "
        "(`farrank data window`). In Biased the relevant passage is where MS MARCO's are, mostly first; in "
        "Far it is anywhere but first, among passages of other articles; in harder Far among passages of the "
        f"same article. A passage is a chunk of every ranker. {_encoder(settings)} "
        f"They learn from {settings.triples:,} other questions on Biased, then on Far; test questions are of "
        f"other articles. Candidates of a question are the {w.candidates} documents whose relevant passages "
        f"BM25 ranks best; for whole articles {settings.natural_candidates} articles, of which rankers read "
        f"at most {settings.natural_chunks} chunks. Figures are MRR.",
        "",
        "A head is all of a ranker but its encoder, which is frozen. Heads learn from new documents "
        "in each epoch, until the MRR of "
        f"{settings.validation_questions:,} held-out questions has not risen for {settings.heads.patience} "
        f"epochs, for {settings.seeds} seeds; the first seed chooses among the learning rates "
        f"{', '.join(f'{rate:g}' for rate in settings.heads.learning_rates)}.",
    ]
    if not all(each.has_vectors for each in plan.contenders):
        lines[-1] += (
            f" Heads that read tokens (CEDR, Neural Model 1) learn from the first {settings.token_triples:,} "
            f"of the questions, {settings.token_heads.most_epochs} times from each: too little to converge, "
            f"so their rows say little. They are asked the first {settings.token_questions:,}; the "
            "comparison with FirstP is on these."
        )
    if plan.whole:
        lines[-1] += (
            " If the encoder is trained too, rankers start with these heads. The last "
            f"{settings.whole.trained_layers} layers of the encoder then learn from "
            f"{settings.whole_triples:,} questions, each read once with one other document. These rankers "
            f"have {settings.whole_seeds} {'seed' if settings.whole_seeds == 1 else 'seeds'} and are asked "
            f"the first {settings.whole_questions:,} questions."
        )
    return "\n".join(lines)


def _encoder(settings: Settings) -> str:
    start = "All rankers start from one encoder"
    if settings.encoder is None:
        return (
            f"{start}: a passage cross-encoder of {_backbone(settings)} with mean pooling, trained on "
            f"{settings.passage_questions:,} questions."
        )
    learned = open_reader(settings.encoder).spec.provenance.get("questions")
    told = f" (questions that it learned from: {learned})" if learned else ""
    return f"{start}: that of the ranker `{settings.encoder}`, with mean pooling{told}."


def _backbone(settings: Settings) -> str:
    return "all-MiniLM-L6-v2" if settings.backbone == EMBEDDED else Path(settings.backbone).name


def _track(found: Mapping[str, Mapping[str, Sequence[Values]]], settings: Settings) -> str:
    values = measured(found)
    questions = len(next(iter(values.values()))[0]["Biased"])
    chance = Chance.of(settings.windows.candidates, questions)
    places = by_place(found, BIASED, settings.windows.most_chunks)
    findings = Judge(values, places, chance).findings()
    rows = compare(values, {name: FIRSTP for name in values if name != FIRSTP})
    seeds = len(next(iter(values.values())))
    legend = (
        f"{questions:,} questions, {len(next(iter(values.values()))[0]['articles']):,} about whole articles"
        f"{f'; ± is the standard deviation of {seeds} seeds' if seeds > 1 else '; one seed'}. Chance: "
        f"{chance.mrr:.3f} ± {chance.bound:.3f}; on whole articles "
        f"{Chance.of(settings.natural_candidates, 1).mrr:.3f}. Different from FirstP (two-sided "
        f"p below {ALPHA:g} over questions, after averaging over seeds): {T_TEST} by the paired t-test, "
        f"{RANDOMISATION} by randomisation. The paper's figures are for FarRelevant with 100 candidates and "
        "BERT; chance there is 0.038."
    )
    return f"{_table(rows)}\n\n{legend}\n\n{_findings(findings, seeds)}"


def _accuracy(found: Mapping[str, Mapping[str, Sequence[Values]]], settings: Settings) -> Report:
    """Make the report of `farrank loadtest accuracy`, with the names of the papers' models.

    `farrank loadtest efficiency --accuracy FILE:Biased` draws these gains.
    """
    values = {
        model: of
        for name, of in measured(found).items()
        if (model := CONTENDERS[name].paper_model) is not None
    }
    firstp = CONTENDERS[FIRSTP].paper_model or FIRSTP
    return Report(
        test_set="SQuAD",
        queries=len(next(iter(values.values()))[0]["Biased"]),
        alpha=ALPHA,
        measures=tuple(MEASURES),
        rows=tuple(compare(values, {name: firstp for name in values if name != firstp})),
        notes=("Measures are MRR.",),
        inputs={"made_by": "farrank_experiments", "questions": settings.test_questions},
    )


def _table(rows: Sequence[ModelRow]) -> str:
    heads = ["ranker", *MEASURES, "paper, zero-shot", "paper, fine-tuned"]
    lines = []
    for row in rows:
        contender = CONTENDERS[row.model]
        figures = [_cell(row.cells[measure]) for measure in MEASURES]
        lines.append([contender.title, *figures, _paper(contender.zero_shot), _paper(contender.tuned)])
        if contender.stands_for:
            title, zero_shot, tuned = contender.stands_for
            same = f"as {contender.title}: the same formula if chunks do not overlap"
            lines.append([title, same, *[""] * (len(MEASURES) - 1), _paper(zero_shot), _paper(tuned)])
    return markdown_table(heads, lines, aligned=False)


def _cell(cell: Cell) -> str:
    tests = {T_TEST: cell.t_test_p, RANDOMISATION: cell.randomisation_p}
    marks = "".join(mark for mark, p in tests.items() if p is not None and p < ALPHA)
    spread = f" ± {stdev(cell.by_seed):.3f}" if len(cell.by_seed) > 1 else ""
    return f"{cell.mean:.3f}{spread}{marks}"


def _paper(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


_ANSWERS = {True: "yes", False: "no", None: "not measured"}


def _findings(findings: Sequence[Finding], seeds: int) -> str:
    decided = [each.came_out for each in findings if each.came_out is not None and not each.is_check]
    above = (
        f"“Above” means a higher mean and p below {ALPHA:g}: by a bootstrap over questions"
        f"{' and seeds' if seeds > 1 else ' (of one seed, so that it does not hold for others)'}, with "
        "Holm's correction for all tests of this table. The detectable difference is the one that such a "
        f"test, uncorrected, finds with a probability of {POWER:.0%}. "
        f"{sum(decided)} of {len(decided)} findings are confirmed."
    )
    checks = (
        "These rules hold by construction for rankers that work: they check the apparatus, and are no "
        "findings."
    )
    return "\n\n".join(
        [
            _rules([each for each in findings if not each.is_check], "finding", "confirmed"),
            above,
            checks,
            _rules([each for each in findings if each.is_check], "check", "passed"),
        ]
    )


def _rules(findings: Sequence[Finding], name: str, outcome: str) -> str:
    rows = [(each.sentence, each.rule, _ANSWERS[each.came_out], each.figures) for each in findings]
    return markdown_table((name, f"{outcome} if", outcome, "figures"), rows, aligned=False)


def _learning(plan: ExperimentPlan) -> str:
    rows = []
    for contender in plan.contenders:
        for stage in STAGES:
            learned = plan.learned(contender, stage)
            epochs = sorted(each.epochs for each in learned)
            ended = sum(each.converged for each in learned)
            held_out = [each.mrr for each in learned if each.mrr is not None]
            rows.append(
                (
                    f"{contender.title}, {stage.capitalize()}",
                    f"{learned[0].learning_rate:g}",
                    f"{epochs[0]} to {epochs[-1]}",
                    f"{ended} of {len(learned)}",
                    f"{fmean(held_out):.3f}" if held_out else "–",
                )
            )
    heads = ("head", "rate", "epochs to the best", "stopped improving", "held-out MRR")
    return f"## How heads learned\n\n{markdown_table(heads, rows, aligned=False)}"


def _times(plan: ExperimentPlan) -> str:
    seconds = {step.name: plan.folders.seconds(step) for step in plan.steps()}
    shared = (plan.data, plan.passages, plan.vectors, plan.doses, plan.tokens, plan.token_answers)
    rows = [(step.title, f"{seconds[step.name]:,.0f}", "") for step in shared if step.name in seconds]
    for contender in plan.contenders:
        head = plan.heads[contender.name]
        whole = [
            sum(seconds[step.name] for (name, *_), step in steps.items() if name == contender.name)
            for steps in (plan.whole, plan.answers)
        ]
        told = f"{whole[0]:,.0f} + {whole[1]:,.0f}" if any(whole) else "–"
        rows.append((contender.title, f"{seconds[head.name]:,.0f}", told))
    heads = ("step", "seconds", "whole ranker: training + measuring")
    note = f"{sum(seconds.values()) / 3600:.1f} hours in all; an interrupted step counts from its last start."
    return f"## Times\n\n{markdown_table(heads, rows, aligned=False)}\n\n{note}"


def _positions(results: Results) -> int:
    found = next(iter(next(iter(results.values())).values()))
    return len(found[BIASED][0]["place 1"])


def _csv_rows(
    results: Iterable[tuple[str, Mapping[str, Mapping[str, Sequence[Values]]]]],
) -> list[dict[str, Any]]:
    return [
        {
            "track": track,
            "ranker": contender,
            "trained_on": stage,
            "seed": seed,
            "condition": condition,
            "query_id": query_id,
            "reciprocal_rank": round(value, 6),
        }
        for track, found in results
        for contender, by_stage in found.items()
        for stage, seeds in by_stage.items()
        for seed, conditions in enumerate(seeds)
        for condition, values in conditions.items()
        for query_id, value in values.items()
    ]


def places_chart(results: Results, settings: Settings) -> Figure:
    """Draw MRR by place of the relevant passage: a panel for each ranker, zero-shot and fine-tuned.

    Bands reach from the lowest seed to the highest.
    """
    places = settings.windows.most_chunks
    rows = {track: -(-len(found) // _COLUMNS) for track, found in results.items()}
    figure = new_figure(12, 0.8 + 2.3 * sum(rows.values()))
    chance = Chance.of(settings.windows.candidates, _positions(results))
    parts = figure.subfigures(len(results), 1, squeeze=False, height_ratios=list(rows.values()))
    for part, (track, found) in zip(parts[:, 0], results.items(), strict=True):
        by_stage = {stage: by_place(found, stage, places) for stage in STAGES}
        grid = part.subplots(rows[track], _COLUMNS, sharey=True, squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_visible(False)
        for axes, contender in zip(grid.flat, found, strict=False):
            _draw(axes, {stage: of[contender] for stage, of in by_stage.items()}, chance)
            axes.set_title(CONTENDERS[contender].title, loc="left", fontsize=9)
            axes.set_xticks(range(1, places + 1))
        part.suptitle(
            f"{TRACKS[track]}: MRR by place of the relevant passage", x=0.01, ha="left", fontsize=11
        )
        part.supylabel("MRR", fontsize=9)
        part.supxlabel("chunk that holds the relevant passage, in all candidates", fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside lower center", ncols=len(labels))
    return figure


_COLUMNS = 4
_STYLES = {BIASED: ("o-", "trained on Biased"), FAR: ("s--", "then on Far")}


def _draw(axes: Axes, by_stage: Mapping[str, Sequence[Sequence[float]]], chance: Chance) -> None:
    for (stage, seeds), colour in zip(by_stage.items(), COLOURS, strict=False):
        columns = list(zip(*seeds, strict=True))
        places = range(1, len(columns) + 1)
        means = [fmean(column) for column in columns]
        style, label = _STYLES[stage]
        axes.plot(places, means, style, color=colour, label=label, markersize=4)
        if len(seeds) > 1:
            axes.fill_between(
                places, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.2
            )
    axes.axhspan(chance.mrr - chance.bound, chance.mrr + chance.bound, color="0.9", zorder=0)
    axes.axhline(chance.mrr, color="0.6", linewidth=1, label="chance (band: 99%)")
    axes.set_ylim(0, 1.02)
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
