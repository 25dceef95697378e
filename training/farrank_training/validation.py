"""Rerank the candidates of queries outside the training set, and measure the order."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from typing import Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from farrank_rankers.ranker import Ranker
from farrank_training.batches import Collator, TrainingBatch
from farrank_training.chunk_subsets import chunks_to_validate
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import Group
from farrank_training.text_store import TextStore
from farrank_trec import Qrels, Run, missing_documents, rank, read_candidates, read_qrels, read_queries
from farrank_trec.measures import evaluate, parse_measures

# Documents of a query that are encoded at once: about fifty chunks, as the papers cut them.
_AT_ONCE = 4


class ValidationTexts(Collection[str], Protocol):
    """The ids of documents, and their texts."""

    def text(self, doc_id: str) -> str:
        """Read a document."""
        ...


class ValidationSet:
    """Queries, their candidates with texts, best first, and judgements.

    A judged query without candidates counts as 0.
    Raises: TrainingError if nothing can be measured, or a candidate has no text.
    """

    def __init__(
        self,
        queries: Mapping[str, str],
        qrels: Qrels,
        candidates: Mapping[str, Sequence[str]],
        texts: ValidationTexts,
    ) -> None:
        self.queries = queries
        self.qrels = {query_id: judged for query_id, judged in qrels.items() if query_id in queries}
        self.candidates = {
            query_id: list(candidates[query_id]) for query_id in self.qrels if query_id in candidates
        }
        self.texts = texts
        if not self.candidates:
            raise TrainingError("no validation query has both judgements and candidates")
        wanted = {doc_id for doc_ids in self.candidates.values() for doc_id in doc_ids}
        if missing := missing_documents(texts, wanted):
            raise TrainingError(missing)

    def only(self, query_ids: Collection[str]) -> "ValidationSet":
        """Take some of the queries. Raises: TrainingError if none of them can be measured."""
        queries = {query_id: text for query_id, text in self.queries.items() if query_id in query_ids}
        found = copy(self)
        found.queries = queries
        found.qrels = {query_id: judged for query_id, judged in self.qrels.items() if query_id in queries}
        found.candidates = {key: ids for key, ids in self.candidates.items() if key in queries}
        if not found.candidates:
            raise TrainingError("no validation query has both judgements and candidates")
        return found

    def measure(self, run: Run, measures: Sequence[str]) -> dict[str, float]:
        """Average measures of a run over the judged queries, by the names given.

        Raises: TrecError if a measure is unknown.
        """
        parsed = parse_measures(measures)
        values = evaluate(self.qrels, run, parsed)
        return {
            name: sum(values[str(measure)].values()) / len(values[str(measure)])
            for name, measure in zip(measures, parsed, strict=True)
        }


def read_validation_set(
    queries: Path,
    qrels: Path,
    candidates: Path,
    collections: Sequence[Path],
    *,
    depth: int = 100,
    query_field: str = "",
    fields: Mapping[str, str] | None = None,
) -> ValidationSet:
    """Read queries, their judgements and the first `depth` candidates of each, with their texts.

    `query_field` and `fields` name keys of JSON lines, as in `read_queries` and `read_documents`.
    Raises: InputError naming file and line; TrainingError if nothing can be measured, or a text is missing.
    """
    texts, run = read_queries(queries, query_field), read_candidates(candidates, depth)
    judged = {query_id: grades for query_id, grades in read_qrels(qrels).items() if query_id in texts}
    wanted = {doc_id for query_id in judged for doc_id in run.get(query_id, ())}
    return ValidationSet(texts, judged, run, TextStore(collections, wanted, fields))


def rerank(
    ranker: Ranker,
    validation: ValidationSet,
    config: TrainingConfig,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda queries: None,
) -> Run:
    """Score all candidates, with the precision of the training, and sort them.

    Processes that train together share the queries, and each returns the whole run. Documents are read up to
    `document_tokens`, whatever `max_chunks` says. With adaptive depth they are read as the plan reads all
    documents, and the chunks of all candidates compete.
    Raises: KeyboardInterrupt if `should_stop` returns True; InputError if a text can no longer be read.
    """
    shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    place, processes = (
        (torch.distributed.get_rank(), torch.distributed.get_world_size()) if shared else (0, 1)
    )
    adaptive = config.depth == "adaptive"
    slices = _Slices(validation, list(validation.candidates)[place::processes], whole=adaptive)
    device = next(ranker.parameters()).device
    promising = chunks_to_validate(ranker.spec) if adaptive else None
    collator = Collator(ranker.reader, None, config.document_tokens, promising=promising)
    loader = DataLoader(slices, batch_size=1, collate_fn=collator, num_workers=config.workers, shuffle=False)
    lower = config.precision == "bf16"
    scores: dict[str, list[tuple[str, float]]] = {query_id: [] for query_id in slices.query_ids}
    was_training = ranker.training
    ranker.eval()
    try:
        with torch.inference_mode():
            for (query_id, doc_ids), batch in zip(slices.parts, loader, strict=True):
                if should_stop():
                    raise KeyboardInterrupt
                found: list[float] = []
                for part in _parts(batch):
                    with torch.autocast(device.type, torch.bfloat16) if lower else nullcontext():
                        found += ranker(*_placed(part, device)).tolist()
                scores[query_id] += zip(doc_ids, found, strict=True)
                progress(len(scores) - sum(not scored for scored in scores.values()))
    finally:
        ranker.train(was_training)
    if shared:
        parts: list[dict[str, list[tuple[str, float]]]] = [{}] * processes
        torch.distributed.all_gather_object(parts, scores)
        scores = {query_id: scored for part in parts for query_id, scored in part.items()}
    bad = next((each for scored in scores.values() for each in scored if each[1] != each[1]), None)
    if bad is not None:
        raise TrainingError(f"the score of document {bad[0]!r} is not a number: training diverged")
    return {query_id: rank(query_id, scores[query_id]) for query_id in validation.candidates}


class _Slices(Dataset[Group]):
    """Groups of at most `_AT_ONCE` documents of one query, or of all its documents if it is read `whole`."""

    def __init__(self, validation: ValidationSet, query_ids: Sequence[str], *, whole: bool) -> None:
        self.validation, self.query_ids = validation, query_ids
        most = max(map(len, validation.candidates.values())) if whole else _AT_ONCE
        self.parts = [
            (query_id, validation.candidates[query_id][start : start + most])
            for query_id in query_ids
            for start in range(0, len(validation.candidates[query_id]), most)
        ]

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Group:
        query_id, doc_ids = self.parts[index]
        texts = tuple(self.validation.texts.text(doc_id) for doc_id in doc_ids)
        return Group(query_id, self.validation.queries[query_id], texts)


def _parts(batch: TrainingBatch) -> Iterator[TrainingBatch]:
    """Divide the documents of one query into parts of at most `_AT_ONCE`."""
    counts, row = batch["counts"], 0
    for start in range(0, len(counts), _AT_ONCE):
        some = counts[start : start + _AT_ONCE]
        rows = slice(row, row + sum(some))
        row = rows.stop
        inputs = tuple(each[rows] for each in batch["batch"])
        yield TrainingBatch(
            batch=inputs,
            counts=some,
            query=batch["query"],
            sizes=[len(some)],
            counted=batch["counted"],
            teacher=None,
            competing=None,
        )


def _placed(
    batch: TrainingBatch, device: torch.device
) -> tuple[tuple[torch.Tensor, ...], list[int], tuple[torch.Tensor, ...] | None]:
    inputs = tuple(each.to(device) for each in batch["batch"])
    query = batch["query"]
    return inputs, batch["counts"], None if query is None else tuple(each.to(device) for each in query)
