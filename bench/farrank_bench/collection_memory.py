"""What training data costs in memory: collections of several sizes, with the same queries and candidates.

python -m farrank_bench.collection_memory --megabytes 100 10240
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from farrank_training.training_set import judged_set

PER_QUERY = 100


@dataclass(frozen=True, slots=True)
class Reading:
    """One process that reads a training set and draws an epoch. `peak` is its memory at most, in MiB."""

    groups: int
    wanted: int
    read_s: float
    drawn_s: float
    peak: float


def write_set(folder: Path, size: int, wanted: int, document_bytes: int) -> int:
    """Write judgements and a collection of `size` bytes; give the number of its documents.

    Each document that is wanted is a candidate of one query, the first of them relevant. They lie at even
    distances among documents that nobody asks for, each of about `document_bytes`.
    """
    queries = range(wanted // PER_QUERY)
    names = {query: [f"d{number}" for number in range(wanted)[query :: len(queries)]] for query in queries}
    run = (
        f"{query} Q0 {each} 1 {-place} t\n" for query in queries for place, each in enumerate(names[query])
    )
    (folder / "queries.tsv").write_text("".join(f"{query}\tquery {query}\n" for query in queries))
    (folder / "qrels.txt").write_text("".join(f"{query} 0 {names[query][0]} 1\n" for query in queries))
    (folder / "run.txt").write_text("".join(run))
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


def read_set(folder: Path) -> Reading:
    """Read the set and draw an epoch, in this process.

    Raises: RuntimeError if a group holds texts of other documents.
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
        if {number % len(found) for number in numbers} != {int(group.query_id)}:
            raise RuntimeError(f"query {group.query_id} has documents {numbers}")
    drawn = time.perf_counter()
    return Reading(len(found), len(found) * PER_QUERY, read - started, drawn - read, peak_mib())


def peak_mib() -> float:
    """Say how much memory this process has held at most, in MiB."""
    # Not getrusage's maximum: that begins with what the parent held when it started this process.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def read_elsewhere(folder: Path) -> Reading:
    """Read the set in a process of its own, which imports nothing but what it needs.

    Raises: CalledProcessError if it fails; its message stands on standard error.
    """
    command = [sys.executable, "-P", __file__, "--read", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Reading(**json.loads(done.stdout))


def main(arguments: list[str] | None = None) -> int:
    """Measure each size and print a table."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.collection_memory", description=__doc__)
    parser.add_argument(
        "--megabytes", type=int, nargs="+", default=[100, 10240], help="sizes of the collections"
    )
    parser.add_argument("--wanted", type=int, default=20_000, help="documents that queries name, 100 a query")
    parser.add_argument("--document-bytes", type=int, default=4096, help="size of a document")
    parser.add_argument("--folder", type=Path, help="where collections are written; the system's folder else")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.read:
        print(json.dumps(asdict(read_set(args.read))))
        return 0
    print(
        "| collection, MiB | documents | wanted | peak memory, MiB | read, s | an epoch's groups drawn, s |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for size in args.megabytes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            documents = write_set(Path(folder), size << 20, args.wanted, args.document_bytes)
            mebibytes = (Path(folder) / "docs.jsonl").stat().st_size / (1 << 20)
            found = read_elsewhere(Path(folder))
        print(
            f"| {mebibytes:,.0f} | {documents:,} | {found.wanted:,} | {found.peak:.1f} | "
            f"{found.read_s:.1f} | {found.drawn_s:.2f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
