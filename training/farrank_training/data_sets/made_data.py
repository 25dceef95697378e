"""The folder of a made collection, in the formats that training and evaluation read.

Each split is a folder of four files and shares no query, passage or document with the other splits. At the
top, data.json records how the collection was made: the same options and files give the same bytes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from farrank_rankers.files.folder_in_place import folder_in_place
from farrank_rankers.files.model_files import locate
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_training.checksums import checksums
from farrank_training.errors import TrainingError
from farrank_trec import Qrels, Run, write_qrels, write_queries, write_run
from farrank_trec.measures import evaluate, mean_name, parse_measures

RECORD = "data.json"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class MadeSplit:
    """The files of one split."""

    folder: Path

    @property
    def collection(self) -> Path:
        """JSON lines of documents: `id`, `text`, and the ids of their `passages`, in order."""
        return self.folder / "collection.jsonl"

    @property
    def queries(self) -> Path:
        """Lines of query_id<TAB>text."""
        return self.folder / "queries.tsv"

    @property
    def qrels(self) -> Path:
        """The documents that are relevant; all others are not."""
        return self.folder / "qrels.txt"

    @property
    def candidates(self) -> Path:
        """A TREC run: the documents to rank for each query."""
        return self.folder / "candidates.trec"


@dataclass(frozen=True, slots=True)
class MadeDocument:
    """A document made of passages; `facts` are further keys of its line."""

    doc_id: str
    text: str
    passages: Sequence[str]
    facts: Mapping[str, Any]


def written_documents(path: Path, documents: Iterable[MadeDocument]) -> Iterator[MadeDocument]:
    """Write documents to a collection and yield each."""
    with path.open("w", encoding="utf-8") as out:
        for each in documents:
            line = {"id": each.doc_id, "text": each.text, "passages": list(each.passages), **each.facts}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            yield each


def write_questions(
    split: MadeSplit, queries: Mapping[str, str], qrels: Qrels, candidates: Run
) -> dict[str, Any]:
    """Write queries, judgements and candidates, and measure the candidates' own order."""
    write_queries(split.queries, queries)
    write_qrels(split.qrels, {query_id: qrels[query_id] for query_id in queries})
    write_run(split.candidates, candidates, "bm25")
    depth = max(map(len, candidates.values()))
    values = evaluate(qrels, candidates, parse_measures(["RR", f"R@{depth}"]))
    means = {
        mean_name(measure): round(sum(of_query.values()) / len(of_query), 4)
        for measure, of_query in values.items()
    }
    return {"queries": len(queries), "candidates": {"of_a_query": depth, **means}}


def open_tokenizer(source: str) -> TextTokenizer:
    """Open the tokenizer that counts tokens: of a folder, the "embedded" model, or one in the hub's cache.

    Raises: SourceError if there is none.
    """
    return TextTokenizer(TokenizerFiles.read(locate(source).folder))


def record(
    kind: str,
    options: Mapping[str, Any],
    tokenizer: tuple[str, TextTokenizer],
    inputs: Sequence[Path],
    splits: Mapping[str, Any],
    left_out: Mapping[str, int],
) -> dict[str, Any]:
    """Describe how data was made, for data.json. The tokenizer's SHA-256 is of tokenizer.json as it is used.

    An input is named by its file's name, or by its path if two share a name; a pipe has no checksum.
    Raises: InputError if an input cannot be read again.
    """
    source, opened = tokenizer
    _, tokenizer_json = opened.files.configured()
    digest = hashlib.sha256(tokenizer_json.encode()).hexdigest()
    names = Counter(path.name for path in inputs)
    hashed = {Path(path): digest for path, digest in checksums(inputs).items()}
    return {
        "kind": kind,
        "made_by": f"farrank {version('farrank')}",
        "options": dict(options),
        "tokenizer": {"source": source, "sha256": digest},
        "inputs": {
            path.name if names[path.name] == 1 else str(path): digest for path, digest in hashed.items()
        },
        "splits": dict(splits),
        "left_out": {reason: count for reason, count in left_out.items() if count},
    }


@contextmanager
def writing_data(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a temporary folder, and move it to `out` when the block ends.

    If the block raises, `out` stays as it was. Only data that this module made is overwritten.
    Raises: TrainingError if `out` exists and may not be overwritten; OSError if it cannot be written.
    """

    def check_free() -> None:
        if out.is_dir() and not any(out.iterdir()):
            return
        if out.exists() and not (overwrite and (out / RECORD).is_file()):
            hint = f"without a {RECORD} it is kept" if overwrite else "--overwrite replaces data made before"
            raise TrainingError(f"{out} exists; {hint}")

    out = out.absolute()
    check_free()
    out.parent.mkdir(parents=True, exist_ok=True)
    with folder_in_place(out, check_free) as making:
        yield making


def write_record(folder: Path, made: Mapping[str, Any]) -> None:
    """Write data.json."""
    (folder / RECORD).write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
