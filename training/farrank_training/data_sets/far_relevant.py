"""MS MARCO FarRelevant: documents of random passages, in which the relevant one starts after token 512.

For a relevant passage of C tokens a length L is drawn between 512 + C and 1,431. Non-relevant passages are
drawn until they have more than 512 tokens together; these come first. More are drawn until the document would
exceed L, and the last one is dropped; the relevant passage gets a random position among these.

The paper draws L but then uses 1,431 as the bound; its documents' lengths are nearly uniform, so L is the
bound here. The paper leaves three points open. Here a passage that is relevant to any query of the splits is
never filler, splits share no passage, and queries with the same relevant passage share its document.
Source: Boytsov et al., arXiv 2207.01262, B.1.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.checksums import is_stream
from farrank_training.data_sets.articles import BETWEEN
from farrank_training.data_sets.lexical_index import LexicalIndex
from farrank_training.data_sets.made_data import (
    SPLITS,
    MadeDocument,
    MadeSplit,
    open_tokenizer,
    record,
    write_questions,
    write_record,
    writing_data,
    written_documents,
)
from farrank_training.errors import TrainingError
from farrank_training.text_store import TextStore
from farrank_trec import DocumentKeys, Qrels, rank, read_qrels, read_queries
from farrank_trec.errors import InputError
from farrank_trec.lines import raw_lines

# Passages kept in the pool for each document to be made; a document takes about 12 of MS MARCO's.
_POOL_PER_DOCUMENT = 24
_SMALLEST_POOL = 1_000
# Draws for one attempt at a document, and attempts before its relevant passage is given up.
_DRAWS = 200
_TRIES = 5


@dataclass(frozen=True, slots=True)
class FarRelevantOptions:
    """The number of queries of each split (0: no such split), and the lengths of documents in tokens.

    Raises: TrainingError naming the option that is out of its limits.
    """

    train: int = 50_000
    dev: int = 500
    test: int = 1_000
    seed: int = 0
    before: int = 512
    longest: int = 1431
    candidates: int = 100
    min_grade: int = 1

    def __post_init__(self) -> None:
        limits = {**dict.fromkeys(SPLITS, 0), "before": 1, "longest": self.before + 2, "candidates": 1}
        for name, least in (limits | {"min_grade": 1}).items():
            if getattr(self, name) < least:
                raise TrainingError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not any(getattr(self, name) for name in SPLITS):
            raise TrainingError(f"{', '.join(SPLITS)} are 0; at least one split needs queries")


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """A split's queries, and the relevant passages to make documents around."""

    queries: Sequence[str]
    targets: Sequence[str]


def make_far_relevant(
    passages: Sequence[Path],
    queries: Path,
    qrels: Path,
    out: Path,
    *,
    tokenizer: str = "embedded",
    options: FarRelevantOptions | None = None,
    fields: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> dict[str, Any]:
    """Make `out/SPLIT/FILES`, and return what data.json says of them.

    The collection is read four times: for the relevant passages, for the ids of the pool, for the texts of
    the pool, and for the checksum. Memory holds the ids of judged passages and of the pool, and an index of
    one split's documents; texts are read from the files when they are drawn. `progress` gets the name of the
    step, the count so far, and the total, 0 if it is unknown.
    Raises: InputError if a file is malformed or the collection is a stream; TrainingError if there are
        too few queries or passages, or `out` is taken; SourceError if the tokenizer cannot be opened.
    """
    given = options or FarRelevantOptions()
    if any(map(is_stream, passages)):
        raise InputError("the collection is read more than once; it cannot be standard input or a pipe")
    opened = open_tokenizer(tokenizer)
    texts, judged = read_queries(queries), read_qrels(qrels)
    relevant = {
        query_id: [passage_id for passage_id, grade in judged[query_id].items() if grade >= given.min_grade]
        for query_id in texts
        if query_id in judged
    }
    left_out: Counter[str] = Counter()
    made: dict[str, Any] = {}
    with writing_data(out, overwrite=overwrite) as folder:
        judged_texts = TextStore(passages, {each for of in relevant.values() for each in of}, fields)
        plans = plan_splits(relevant, judged_texts, opened, given, left_out)
        asked = {each for plan in plans.values() for query_id in plan.queries for each in relevant[query_id]}
        pools = _draw_pools(passages, fields, asked, given, progress)
        store = TextStore(passages, {*asked, *(each for pool in pools.values() for each in pool)}, fields)
        for split, plan in plans.items():
            maker = DocumentMaker(store, pools[split], opened, given)
            place = MadeSplit(folder / split)
            place.folder.mkdir()

            def say(done: int, split: str = split, plan: SplitPlan = plan) -> None:
                progress(f"{split} documents made", done, len(plan.targets))

            made[split] = _write_split(place, split, plan, maker, texts, judged, given, left_out, say)
        said = record(
            "far-relevant", asdict(given), (tokenizer, opened), [*passages, queries, qrels], made, left_out
        )
        write_record(folder, said)
    return said


def plan_splits(
    relevant: Mapping[str, Sequence[str]],
    store: TextStore,
    tokenizer: TextTokenizer,
    options: FarRelevantOptions,
    left_out: Counter[str],
) -> dict[str, SplitPlan]:
    """Divide queries and their relevant passages among the splits; no passage is in two.

    Raises: TrainingError if a split does not get as many queries as it should.
    """
    order = sorted(relevant)
    Random(f"{options.seed}/queries").shuffle(order)
    waiting = iter(order)
    split_of: dict[str, str] = {}
    longest = options.longest - options.before - 1
    plans: dict[str, SplitPlan] = {}
    for split in reversed(SPLITS):  # train, usually the largest, takes the rest
        size = getattr(options, split)
        chosen: list[str] = []
        targets: set[str] = set()
        while len(chosen) < size:
            query_id = next(waiting, None)
            if query_id is None:
                why = "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())
                raise TrainingError(
                    f"{split} is {size:,}; only {len(chosen):,} queries are left that can be used"
                    + (f" ({why})" if why else "")
                )
            ids = relevant[query_id]
            there = [each for each in ids if each in store]
            if any(split_of.get(each, split) != split for each in ids):
                left_out["queries that share a passage with another split"] += 1
                continue
            if not there:
                left_out["queries without a relevant passage in the collection"] += 1
                continue
            if targets.isdisjoint(there):
                target = _usable(query_id, there, store, tokenizer, longest, options.seed)
                if not target:
                    left_out[f"queries whose relevant passages are blank or above {longest} tokens"] += 1
                    continue
                targets.add(target)
            split_of |= dict.fromkeys(ids, split)
            chosen.append(query_id)
        if size:
            plans[split] = SplitPlan(sorted(chosen), sorted(targets))
    return {split: plans[split] for split in SPLITS if split in plans}


def _usable(
    query_id: str, there: Sequence[str], store: TextStore, tokenizer: TextTokenizer, longest: int, seed: int
) -> str:
    """Draw one of a query's relevant passages that are short enough; "" if none is."""
    order = Random(f"{seed}/target/{query_id}").sample(sorted(there), len(there))
    return next((each for each in order if 0 < tokenizer.count(store.text(each)) <= longest), "")


def _draw_pools(
    passages: Sequence[Path],
    fields: Mapping[str, str] | None,
    never: Collection[str],
    options: FarRelevantOptions,
    progress: Callable[[str, int, int], None],
) -> dict[str, list[str]]:
    """Draw the ids of filler passages, separately for each split."""
    sizes = {split: getattr(options, split) for split in SPLITS}
    room = max(_SMALLEST_POOL, _POOL_PER_DOCUMENT * sum(sizes.values()))
    rng = Random(f"{options.seed}/pool")
    keys = DocumentKeys(fields)
    kept: list[str] = []
    seen = 0
    for source in passages:
        for where, _, line in raw_lines(source):
            found = keys.read(where, line)
            assert found is not None  # all ids are wanted
            passage_id, text = found
            if passage_id in never or not text.strip():
                continue
            # Reservoir sampling: every passage has the same chance to be kept, however many follow.
            seen += 1
            progress("passages looked at", seen, 0)
            place = len(kept) if len(kept) < room else rng.randrange(seen)
            if place == len(kept):
                kept.append(passage_id)
            elif place < room:
                kept[place] = passage_id
    rng.shuffle(kept)
    ends = [len(kept) * each // sum(sizes.values()) for each in accumulate(sizes.values(), initial=0)]
    return {split: kept[start:end] for split, (start, end) in zip(sizes, pairwise(ends), strict=True)}


class DocumentMaker:
    """Makes documents around relevant passages, with filler passages drawn from a pool."""

    def __init__(
        self, store: TextStore, pool: Sequence[str], tokenizer: TextTokenizer, options: FarRelevantOptions
    ) -> None:
        self._store, self._pool, self._tokenizer, self._options = store, pool, tokenizer, options

    def make(self, passage_id: str) -> MadeDocument | None:
        """Make the document of a relevant passage, or None if no drawn filler fits.

        Its id is `far-PASSAGE`. Its line gives the passage's position among the `passages`, from 1, the token
        at which it starts, and the document's number of tokens.
        """
        text = self._store.text(passage_id)
        for attempt in range(_TRIES):
            rng = Random(f"{self._options.seed}/document/{passage_id}/{attempt}")
            made = self._attempt(passage_id, text, rng)
            if made is not None:
                return made
        return None

    def _attempt(self, passage_id: str, text: str, rng: Random) -> MadeDocument | None:
        options = self._options
        own = self._tokenizer.count(text)
        if not options.before + own < options.longest:
            return None
        bound = rng.randint(options.before + own, options.longest)
        draws = self._draws(rng)
        front: list[tuple[str, str]] = []
        total = own
        for each, beside, tokens in draws:
            # Skip a filler that leaves no room for the relevant passage.
            if total + tokens <= options.longest:
                front.append((each, beside))
                total += tokens
                if total - own > options.before:
                    break
        else:
            return None
        behind: list[tuple[str, str]] = []
        for each, beside, tokens in draws:
            if total + tokens > bound:
                break
            behind.append((each, beside))
            total += tokens
        behind.insert(rng.randint(0, len(behind)), (passage_id, text))
        pieces = front + behind
        whole = BETWEEN.join(piece for _, piece in pieces)
        place = [each for each, _ in pieces].index(passage_id)
        # Count the joined text: the pieces' tokens add up with BERT's tokenizer, not with every other.
        start = self._tokenizer.count(BETWEEN.join(piece for _, piece in pieces[:place]))
        length = self._tokenizer.count(whole)
        if not (start > options.before and options.before + own <= length <= options.longest):
            return None
        facts = {"relevant": place + 1, "starts_at": start, "tokens": length}
        return MadeDocument(f"far-{passage_id}", whole, [each for each, _ in pieces], facts)

    def _draws(self, rng: Random) -> Iterator[tuple[str, str, int]]:
        """Draw other passages, each once: id, text, tokens."""
        for each in rng.sample(self._pool, min(_DRAWS, len(self._pool))):
            text = self._store.text(each)
            yield each, text, self._tokenizer.count(text)


def _write_split(
    place: MadeSplit,
    split: str,
    plan: SplitPlan,
    maker: DocumentMaker,
    texts: Mapping[str, str],
    judged: Qrels,
    options: FarRelevantOptions,
    left_out: Counter[str],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    doc_ids: list[str] = []
    tokens = 0

    def documents() -> Iterator[MadeDocument]:
        for done, target in enumerate(plan.targets, 1):
            document = maker.make(target)
            if document is None:
                left_out["relevant passages beside which nothing fits"] += 1
            else:
                yield document
            progress(done)

    def written_texts() -> Iterator[str]:
        nonlocal tokens
        for each in written_documents(place.collection, documents()):
            doc_ids.append(each.doc_id)
            tokens += int(each.facts["tokens"])
            yield each.text

    index = LexicalIndex(written_texts())
    made = set(doc_ids)
    qrels: Qrels = {}
    for query_id in plan.queries:
        grades = {
            f"far-{each}": grade for each, grade in judged[query_id].items() if grade >= options.min_grade
        }
        own = {doc_id: grade for doc_id, grade in grades.items() if doc_id in made}
        if own:
            qrels[query_id] = own
    if not qrels:
        raise TrainingError(
            f"{split}: the filler passages are too few or too long; no document could be made"
        )
    left_out["queries without a document"] += len(plan.queries) - len(qrels)
    candidates = {
        query_id: rank(
            query_id,
            [(doc_ids[at], round(score, 4)) for at, score in index.best(texts[query_id], options.candidates)],
        )
        for query_id in qrels
    }
    return {
        "documents": len(doc_ids),
        "tokens_of_a_document": round(tokens / len(doc_ids), 1),
        **write_questions(place, {query_id: texts[query_id] for query_id in qrels}, qrels, candidates),
    }
