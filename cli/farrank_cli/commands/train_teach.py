"""`farrank train teach`: write a ranker's scores of training documents, for others to learn from."""

import argparse
from functools import partial
from pathlib import Path

from farrank_cli.exit_codes import DONE, CommandError, told_in_a_line
from farrank_cli.flags import at_least, flag, flag_group, not_given
from farrank_cli.terminal import Progress, counted
from farrank_cli.training_data import (
    add_training_data_flags,
    check_training_data,
    read_training_set,
    texts_flags,
)
from farrank_rankers.errors import RankerError
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_trec.errors import TrecError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("teacher", metavar="RANKER", help="an artifact, another ranker or embedded:NAME")
    add = partial(flag, parser)
    add("--out FILE", "JSON lines to write, for --examples of farrank train", Path, required=True)
    add_training_data_flags(parser)
    add = flag_group(parser, "settings")
    add(
        "--negatives N",
        "negatives of each query to score, besides all its relevant documents",
        at_least(1),
        31,
    )
    top = TrainingConfig().negatives_from
    meaning = f"number of first candidates of each query to draw negatives from ({top})"
    add("--negatives-from N", meaning, at_least(1))
    meaning = "tokens of a document to read; without it the teacher's own limit, or the papers' 1,431"
    add("--document-tokens N", meaning, at_least(1))
    add("--batch-size N", "chunks that are encoded at once", at_least(1), 16)
    add("--seed N", "seed of the negatives", at_least(0, 2**32 - 1), 0)
    add("--download", "fetch files from the hub that are not in its cache")
    add("--cpu", "score on the CPU, even if there is a GPU")


def run(args: argparse.Namespace) -> int:
    """Score all documents, write the file, and print how many there are.

    Raises: CommandError if flags or files cannot be used.
    """
    import torch

    from farrank_rankers.files.open import open_ranker
    from farrank_training.teaching import teach

    if not check_training_data(args, "train teach"):
        not_given(texts_flags(args), "needs --queries")
        not_given({"--negatives-from": args.negatives_from}, "needs --candidates")
    if args.out.exists():
        raise CommandError(f"--out {args.out}: exists; it must be a new file")
    top = args.negatives_from or max(TrainingConfig().negatives_from, args.negatives)
    with told_in_a_line(TrainingError, RankerError, TrecError, file=args.out):
        device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
        teacher = open_ranker(args.teacher, device=device, download=args.download)
        training_set = read_training_set(args, 1, top).of_seed(args.seed)
        progress = Progress("queries", len(training_set))
        try:
            documents = teach(
                teacher,
                training_set,
                args.out,
                negatives=args.negatives,
                document_tokens=args.document_tokens,
                batch_size=args.batch_size,
                progress=progress,
            )
        finally:
            progress.end()
    print(f"{args.out}: {counted(documents, 'document')} scored by {args.teacher}")
    return DONE
