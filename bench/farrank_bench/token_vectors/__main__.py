"""Token vectors of multi-vector models: the codecs' losses, the kernel beside others, and searches.

python -m farrank_bench.token_vectors --data ../shared/data --out report.md

The ranker is the embedded backbone with a projection from PCA, and no training. `codecs` ranks the demo,
NFCorpus and DL19 by rounded vectors, and takes 20 minutes; `kernel` compares 32 query vectors with those of
100 documents of 1,431 tokens, in turns with other libraries; `search` lets a server answer from an index of
such documents; `million` opens and reads a store of a million documents.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

from farrank_bench.report import Command, Heading, Measure
from farrank_bench.token_vectors.codecs import losses
from farrank_bench.token_vectors.kernel import compare_kernels
from farrank_bench.token_vectors.search import a_million, searching
from farrank_runtimes.cores import usable_cores

NOTES = (
    "embedded:maxsim, unless --ranker names another; the kernel compares all rows, searches also "
    "punctuation; {threads} threads; medians (smallest to largest), of the kernel over {rounds} rounds, of "
    "searches over 5 rounds of 60 calls' medians"
)
SECTIONS = ("codecs", "kernel", "search", "million")


def main() -> int:
    """Measure the sections, print the report."""
    command = Command("farrank_bench.token_vectors", __doc__)
    add = command.options.add_argument
    add("--data", type=Path, help="folder with nfcorpus/ and trecdl19/")
    add("--rounds", type=int, default=20)
    add("--cache", type=Path, default=Path(".cache"), help="folder for the peers' packages (%(default)s)")
    add(
        "--ranker",
        type=Path,
        help="a multi-vector ranker in place of embedded:maxsim",
    )
    command.sections(SECTIONS, default=SECTIONS)
    given = command.parse(None)
    heading = Heading("Token vectors", NOTES.format(threads=usable_cores(), rounds=given.rounds))
    with tempfile.TemporaryDirectory() as folder:
        parts: list[tuple[str, Measure]] = []
        for section in given.sections:
            if section == "codecs":
                parts += losses(given.ranker, given.data)
            elif section == "kernel":
                kernel = partial(compare_kernels, given.rounds, given.cache, Path(folder))
                parts.append(("100 documents of 1,431 tokens, 32 query vectors", kernel))
            elif section == "search":
                parts.append(("Searches from the store", partial(searching, given.ranker, Path(folder))))
            else:
                parts.append(("A million documents", partial(a_million, Path(folder))))
        return command.report(heading, parts, given.out)


if __name__ == "__main__":
    sys.exit(main())
