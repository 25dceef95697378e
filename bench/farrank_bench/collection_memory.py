"""The memory that training data takes, for collections and runs of several sizes.

python -m farrank_bench.collection_memory --megabytes 100 10240
python -m farrank_bench.collection_memory --megabytes 100 --times 1 100
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from farrank_training.training_set import judged_set

PER_QUERY = 100


@dataclass(frozen=True, slots=True)
class CollectionMemory:
    """The figures of a process that reads a training set and draws an epoch. `peak` is its memory in MiB."""

    groups: int
    read_s: float
    drawn_s: float
    peak: float


def write_set(folder: Path, size: int, wanted: int, document_bytes: int, times: int = 1) -> int:
    """Write judgements and a collection of `size` bytes. Returns the number of its documents.

    Each of the `wanted` documents is a candidate of `times` queries; the first candidate of each query is
    relevant. The wanted documents are evenly spaced among others, and all have about `document_bytes`.
    """
    sets = wanted // PER_QUERY
    names = [[f"d{number}" for number in range(wanted)[first::sets]] for first in range(sets)]
    queries = range(sets * times)
    with (folder / "queries.tsv").open("w") as out:
        out.writelines(f"{query}\twhose documents are {query % sets} of {sets}\n" for query in queries)
    with (folder / "qrels.txt").open("w") as out:
        out.writelines(f"{query} 0 {names[query % sets][0]} 1\n" for query in queries)
    with (folder / "run.txt").open("w") as out:
        out.writelines(
            f"{query} Q0 {each} 1 {-place} t\n"
            for query in queries
            for place, each in enumerate(names[query % sets])
        )
    words = "window of a document that slides over its tokens " * (document_bytes // 49 + 1)
    text = words[: document_bytes - 40]
    documents = max(wanted, size // document_bytes)
    step = documents // wanted
    with (folder / "docs.jsonl").open("w") as out:
        for number in range(documents):
            place, between = divmod(number, step)
            name = f"other{number}" if between or place >= wanted else f"d{place}"
            out.write(f'{{"id": "{name}", "text": "{name} {text}"}}\n')
    return documents


def read_set(folder: Path) -> CollectionMemory:
    """Read the set and draw an epoch, in this process.

    Raises: RuntimeError if a group has texts of other documents.
    """
    started = time.perf_counter()
    found = judged_set(
        folder / "queries.tsv",
        folder / "qrels.txt",
        folder / "run.txt",
        [folder / "docs.jsonl"],
        top=PER_QUERY,
    )
    read = time.perf_counter()
    for index in range(len(found)):
        group = found.group(index, epoch=0)
        numbers = [int(text.split(" ", 1)[0].removeprefix("d")) for text in group.documents]
        *_, mine, _, sets = group.query.split()
        if {number % int(sets) for number in numbers} != {int(mine)}:
            raise RuntimeError(f"query {group.query_id} has documents {numbers}")
    drawn = time.perf_counter()
    return CollectionMemory(len(found), read - started, drawn - read, peak_mib())


def peak_mib() -> float:
    """Return this process's peak memory in MiB."""
    # getrusage's maximum starts from the parent's memory at the time when it started this process.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def read_elsewhere(folder: Path) -> CollectionMemory:
    """Read the set in a new process, which imports only what reading needs.

    Raises: CalledProcessError if it fails. Its message is on standard error.
    """
    command = [sys.executable, "-P", __file__, "--read", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return CollectionMemory(**json.loads(done.stdout))


def main(arguments: list[str] | None = None) -> int:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.collection_memory", description=__doc__)
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[100, 10240], help="sizes of the collections"
    )
    parser.add_argument(
        "--wanted", type=int, default=20_000, help="documents that are candidates, 100 of each query"
    )
    parser.add_argument("--times", type=int, nargs="+", default=[1], help="queries that share a candidate")
    parser.add_argument("--document-bytes", type=int, default=4096, help="size of a document")
    parser.add_argument("--folder", type=Path, help="folder for collections; default the system's")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.read:
        print(json.dumps(asdict(read_set(args.read))))
        return 0
    print(
        "| collection, MiB | documents | wanted | candidates | peak memory, MiB | read, s | "
        "an epoch's groups drawn, s |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for size, times in product(args.megabytes, args.times):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            documents = write_set(Path(folder), size << 20, args.wanted, args.document_bytes, times)
            mebibytes = (Path(folder) / "docs.jsonl").stat().st_size / (1 << 20)
            found = read_elsewhere(Path(folder))
        print(
            f"| {mebibytes:,.0f} | {documents:,} | {args.wanted:,} | {found.groups * PER_QUERY:,} | "
            f"{found.peak:.1f} | {found.read_s:.1f} | {found.drawn_s:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
