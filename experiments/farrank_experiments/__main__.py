"""Reproduce the papers' findings on SQuAD, step by step: `python -m farrank_experiments`.

Finished steps are kept under --work; after an interruption the same command continues from there. The report
goes to --out.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from farrank_experiments.contenders import CONTENDERS
from farrank_experiments.kept_rankers import keep_rankers
from farrank_experiments.page import PAGE, write_page
from farrank_experiments.plan import ExperimentPlan
from farrank_experiments.settings import Settings, quick
from farrank_experiments.steps import StepFolders
from farrank_rankers.errors import RankerError
from farrank_rankers.files.model_files import EMBEDDED, locate
from farrank_training.errors import TrainingError
from farrank_trec.errors import TrecError

INTERRUPTED = 130
SQUAD = Path("../shared/data/squad")
WORK = Path(".cache/experiment")

_TINY = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps that are not done and write the report; return 1 on failure, 130 if interrupted."""
    given_arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="farrank_experiments", description=__doc__)
    add = parser.add_argument
    add("--squad", type=Path, default=SQUAD, metavar="DIR",
        help="holds passages.jsonl.gz and queries.jsonl.gz (%(default)s)")  # fmt: skip
    add("--work", type=Path, default=WORK, metavar="DIR", help="keeps the steps (%(default)s)")
    add(
        "--out",
        type=Path,
        metavar="DIR",
        help="the report's folder (docs/benchmarks/DATE-findings; with --quick a folder in --work)",
    )
    add("--rankers", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), metavar="NAME",
        help=f"any of {', '.join(CONTENDERS)}; default all")  # fmt: skip
    add("--whole-rankers", nargs="*", choices=list(CONTENDERS), default=[], metavar="NAME",
        help="those of them to train together with their encoder, too (none)")  # fmt: skip
    add("--whole-seeds", type=int, metavar="N", help="seeds of --whole-rankers (1)")
    add("--whole-triples", type=int, metavar="N", help="questions that they learn from (1500)")
    add("--encoder", metavar="SOURCE",
        help="use this ranker's encoder (embedded:maxp or a folder) instead of training one")  # fmt: skip
    add("--keep", type=Path, metavar="DIR",
        help="write the rankers on a frozen encoder to folders there, as small differences")  # fmt: skip
    add("--precision", choices=("fp32", "bf16"), default="fp32",
        help="precision of encoders and of learning; bf16 if the processor has it (%(default)s)")  # fmt: skip
    add("--quick", action="store_true", help="a trial with a tiny model: its figures mean nothing")
    given = parser.parse_args(given_arguments)
    try:
        folders = StepFolders(given.work)
        settings = quick(str(_tiny_backbone(given.work))) if given.quick else Settings()
        settings = settings.in_precision(given.precision)
        settings = replace(settings, encoder=given.encoder)
        whole_sizes = {"whole_seeds": given.whole_seeds, "whole_triples": given.whole_triples}
        settings = replace(settings, **{name: size for name, size in whole_sizes.items() if size is not None})
        contenders = [CONTENDERS[name] for name in dict.fromkeys(given.rankers)]
        whole = [each for each in contenders if each.name in given.whole_rankers]
        plan = ExperimentPlan(
            settings, given.squad, folders, contenders, whole, lambda said: print(said, flush=True)
        )
        folders.do(plan.steps(), lambda said: print(said, flush=True))
        dated = Path("docs/benchmarks", f"{datetime.now(UTC):%Y-%m-%d}-findings")
        out = given.out or (given.work / "report" if given.quick else dated)
        write_page(out, plan, ["python", "-m", parser.prog, *given_arguments], quick=given.quick)
        print(out / PAGE)
        if given.keep is not None:
            for folder in keep_rankers(plan, given.keep):
                print(folder)
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; the same command continues from {given.work}", file=sys.stderr)
        return INTERRUPTED
    except (TrainingError, TrecError, RankerError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def _tiny_backbone(work: Path) -> Path:
    """Write a BERT of two layers with the embedded model's tokenizer; its weights are random."""
    folder = work / "tiny-bert"
    folder.mkdir(exist_ok=True)
    for path in locate(EMBEDDED).folder.glob("*token*"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(_TINY), encoding="utf-8")
    return folder


if __name__ == "__main__":
    sys.exit(main())
