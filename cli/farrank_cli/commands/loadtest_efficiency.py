"""`farrank loadtest efficiency`: run time and gain of the papers' rankers, relative to FirstP."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.depth_flag import depth
from farrank_cli.exit_codes import DONE, CommandError, missing_extra
from farrank_cli.flags import at_least, count, flag, flag_group, listed, pair, positive
from farrank_cli.spawn import SpawnError, spawned_server
from farrank_cli.terminal import Progress
from farrank_cli.terminated import sigterm_interrupts
from farrank_loadtest.efficiency.published import LIMIT, PAPERS_LENGTHS

if TYPE_CHECKING:
    from farrank_loadtest.depths import Depth
    from farrank_loadtest.efficiency.measuring import EfficiencySweep, Start
    from farrank_loadtest.efficiency.points import Gain, Pair
    from farrank_loadtest.efficiency.run_times import Results


QUERY = "when was it built, and who were the people behind it"
EPILOG = """\
examples:
  all rankers of the papers, with published gains and measured run times:
    farrank loadtest efficiency --collection passages.jsonl.gz --precision bf16 --out results/efficiency
  two of them, one with its own weights, and gains measured by `farrank loadtest accuracy`:
    farrank loadtest efficiency --collection passages.jsonl.gz --rankers maxp-bert,parade-attn-bert \\
      --trained maxp-bert=models/maxp --accuracy results/dl/accuracy.json:nDCG@10 --out results/two
  full reading and adaptive depth, with gains of `farrank loadtest accuracy --depth all --depth adaptive`:
    farrank loadtest efficiency --collection articles.jsonl --rankers maxp-bert --depth adaptive \\
      --trained maxp-bert=models/maxp --trained firstp-bert=models/firstp \\
      --accuracy results/squad/accuracy.json:RR --out results/depth
  continue after an interruption, or redraw with more figures of accuracy: the same flags, and --resume
"""


# The farrank_loadtest imports are local: the flags and their help need no extra.
def configure(parser: argparse.ArgumentParser) -> None:
    """Add the test's flags."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    # The name in errors of failed calls: there is no server address.
    parser.set_defaults(target="efficiency")
    meaning = "The papers' rankers (farrank rankers --papers), each with its FirstP."
    add = flag_group(parser, "rankers", meaning)
    add("--rankers NAME,…", "measure only these (all)", listed(str), default=[])
    meaning = "serve this artifact for the ranker instead of random weights at the paper's size"
    add("--trained NAME=FOLDER", meaning, repeated=True)
    meaning = (
        "accuracy.json of `farrank loadtest accuracy` for the gains (nDCG@10); several are averaged; "
        "rankers missing there are drawn hollow, at the papers' gain"
    )
    add("--accuracy FILE[:MEASURE]", meaning, repeated=True)
    meaning = (
        "measure rankers at this adaptive depth, too: those whose gain --accuracy has, as `farrank loadtest "
        "accuracy --depth` names it"
    )
    add("--depth DEPTH", meaning, _adaptive, repeated=True, dest="depths")

    add = flag_group(parser, "measurement: one call, repeated")
    meaning = "JSON lines of documents, or of passages with `article` and `pos`, which are joined"
    add("--collection FILE", meaning, Path, required=True)
    add("--documents N", "documents of a call", count, 3)
    meaning = "lengths in tokens to cut documents to, in turn (%(default)s: the means of the papers' "
    meaning += f"collections); above {LIMIT:,} only if all rankers are --trained"
    add("--lengths N,…", meaning, listed(count), ",".join(map(str, PAPERS_LENGTHS)))
    add("--query TEXT", "query of the call", default=QUERY)
    meaning = "calls of each ranker, in turn with its FirstP; medians count"
    add("--rounds N", meaning, count, 3)
    add("--timeout-s S", "timeout of a call", positive, 1800.0)

    add = flag_group(parser, "servers, one started for each ranker, on loopback")
    add("--device NAME", "cpu or cuda:0", default="cpu")
    add("--precision", "precision of the encoders", choices=("fp32", "bf16"), default="fp32")
    meaning = "maximum positions of a batch (%(default)d: the longest input fits)"
    add("--max-batch-tokens N", meaning, at_least(LIMIT), 2048)
    flag(parser, "--out FOLDER", "folder for plot and table", Path, required=True)
    flag(parser, "--resume", "measure only what the folder lacks, under the same conditions")


def _adaptive(text: str) -> Depth:
    if text == "all":
        raise argparse.ArgumentTypeError("all is always measured; name an adaptive depth")
    return depth(text)


# Imported early to report a missing extra at once; the started servers need the last one.
_NEEDED = (
    "farrank_loadtest.efficiency.efficiency_report",
    "farrank_loadtest.efficiency.measuring",
    "farrank_server.run",
)


def run(args: argparse.Namespace) -> int:
    """Measure the rankers that the folder lacks, then write plot, CSV and table of all.

    Raises: CommandError or LoadtestError, one line, if it cannot be done; KeyboardInterrupt if interrupted,
    after the results so far are written.
    """
    try:
        for module in _NEEDED:
            import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra("loadtest efficiency", error, "loadtest", "server", "embedded") from error
    from farrank_loadtest.depths import check_depths
    from farrank_loadtest.efficiency.efficiency_report import open_folder
    from farrank_loadtest.efficiency.long_documents import documents_of_lengths
    from farrank_loadtest.efficiency.measuring import EfficiencySweep, check_trained, common_tokenizer
    from farrank_loadtest.efficiency.points import (
        all_gains,
        all_pairs,
        at_depths,
        chosen_pairs,
        measured_gains,
        parse_accuracy,
    )
    from farrank_loadtest.efficiency.run_times import Conditions, RepeatedCall
    from farrank_loadtest.machine import describe_machine, installed_versions
    from farrank_rankers.papers import paper_models

    # Every check comes before the first ranker, because measuring may take an hour.
    check_depths(args.depths)
    pairs = at_depths(all_pairs(paper_models()), args.depths)
    trained = _trained(args.trained)
    check_trained(trained, pairs)
    reports = [parse_accuracy(text, "nDCG@10") for text in args.accuracy]
    gains = all_gains(measured_gains(reports, pairs))
    chosen = chosen_pairs(pairs, args.rankers, gains, args.depths)
    random = [pair.ranker.name for pair in chosen if pair.ranker.name not in trained]
    if max(args.lengths) > LIMIT and random:
        raise CommandError(
            f"--lengths: {max(args.lengths)} is above {LIMIT}, the most that the papers' models read, and "
            f"--trained has no {random[0]}"
        )
    tokenizer = common_tokenizer()
    documents = documents_of_lengths(args.collection, args.documents, args.lengths, tokenizer)
    settings = (
        f"--device={args.device}",
        f"--precision={args.precision}",
        f"--set=batching.max_batch_tokens={args.max_batch_tokens}",
        # With a cache the second round would cost nothing.
        "--set=cache_bytes=0",
    )
    conditions = Conditions(
        machine=describe_machine(),
        versions=installed_versions(("farrank", "torch", "transformers", "tokenizers")),
        precision=args.precision,
        device=args.device,
        settings=settings,
        query=args.query,
        documents={each.doc_id: each.tokens for each in documents},
        rounds=args.rounds,
        trained={name: str(folder) for name, folder in trained.items()},
    )
    command = shlex.join(["farrank", *sys.argv[1:]])
    results = open_folder(args.out, conditions, command, resume=args.resume)
    work = RepeatedCall(args.query, [each.text for each in documents], args.rounds, args.timeout_s)
    sweep = EfficiencySweep(work, tokenizer, trained, _starter(settings), args.out, _tell)
    with sigterm_interrupts():
        _measure(sweep, chosen, results, pairs, gains)
    return DONE


def _measure(
    sweep: EfficiencySweep,
    chosen: Sequence[Pair],
    kept: Results,
    pairs: Mapping[str, Pair],
    gains: Mapping[str, Gain],
) -> None:
    """Write the results however the sweep ends; print the table if it succeeds."""
    from farrank_loadtest.efficiency.efficiency_report import write_report
    from farrank_loadtest.efficiency.points import make_points

    ended = False
    wanted = {pair.name for pair in chosen}
    already = len(wanted & kept.measured.keys())
    progress = Progress("rankers measured", len(wanted) - already, every_s=0)
    try:
        for results in sweep.run(chosen, kept):
            kept = results
            progress(len(wanted & kept.measured.keys()) - already)
        ended = True
    finally:
        progress.end()
        table = write_report(sweep.folder, kept, make_points(kept.measured, gains, pairs))
        done = sum(pair.name in kept.measured for pair in chosen)
        how = "" if ended else "; --resume continues from there"
        _tell(f"{sweep.folder}: {done} of {len(chosen)} rankers measured{how}")
    print(table, end="")


def _trained(given: Sequence[str]) -> dict[str, Path]:
    trained: dict[str, Path] = {}
    for each in given:
        name, folder = pair("--trained NAME=FOLDER", each)
        if name in trained:
            raise CommandError(f"--trained {each}: {name} is given twice")
        trained[name] = Path(folder).absolute()
    return trained


def _starter(settings: Sequence[str]) -> Start:
    @contextmanager
    def start(folders: Mapping[str, Path]) -> Iterator[str]:
        rankers = [f"--ranker={name}={folder}" for name, folder in folders.items()]
        try:
            with spawned_server(
                ["--host=127.0.0.1", "--metrics-port=none", "--log-level=warning", *rankers, *settings]
            ) as server:
                yield server.address
        except SpawnError as error:
            raise CommandError(f"{', '.join(folders)}: {error}") from error

    return start


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
