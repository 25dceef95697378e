"""Documents of chunk-sized passages, with the relevant passage early or late: Biased and Far.

Articles with questions, such as SQuAD's, become two collections with the same questions and the same relevant
passages. Every passage is a window of whole words with exactly a chunk's number of tokens, so documents cut
into disjoint chunks are cut between passages. A relevant window holds the answer to its questions.

- biased: the relevant passage is where MS MARCO's are, mostly first; the others are of the same article.
- far: it is anywhere but first, and the others are of other articles, as in MS MARCO FarRelevant.

The candidates of a question are the documents whose relevant passages BM25 ranks best, always with the
question's own document. BM25 sees only these passages: a search of whole documents would order them worse.
Source: Boytsov et al., arXiv 2207.01262, B.1 (FarRelevant) and online appendix, Table 2 (positions).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.articles import BETWEEN, ArticlePassage, Articles, read_articles
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
from farrank_trec import rank
from farrank_trec.errors import InputError
from farrank_trec.lines import check_id, json_object, named_string, numbered_lines
from farrank_trec.text_files import QUERY_IDS, QUERY_TEXTS

KINDS = ("biased", "far")

# Where MS MARCO's first relevant passages start, in percent by chunk; 0.1% start in later chunks.
BIASED_PLACES = (85.9, 9.1, 2.6, 1.2, 0.6, 0.6)
BEHIND = 0.1


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """How documents are made; `train`, `dev` and `test` limit the questions of a split, None takes all.

    Questions about articles of `test_split` are the test questions. The other articles are divided:
    `distractor_articles` give fillers to Far's test and as many to its training; `dev_articles` give the dev
    questions and as many give dev's fillers; the rest give the training questions.
    Raises: TrainingError naming the option that is out of its limits.
    """

    seed: int = 0
    chunk_tokens: int = 128
    fewest_chunks: int = 2
    most_chunks: int = 6
    candidates: int = 20
    distractor_articles: int = 100
    dev_articles: int = 20
    test_split: str = "dev"
    train: int | None = None
    dev: int | None = None
    test: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "chunk_tokens": 8,
            "fewest_chunks": 2,
            "most_chunks": self.fewest_chunks,
            "candidates": 2,
            "distractor_articles": 1,
            "dev_articles": 1,
            **dict.fromkeys(SPLITS, 1),
        }
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise TrainingError(f"{name} is {value}; it must be at least {least}")


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question, the passage that answers it, and the answer's characters [start, end) in the passage."""

    where: str
    query_id: str
    text: str
    passage_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a passage, from characters [start, end), its words joined by single spaces."""

    passage_id: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RelevantPassage:
    """A window that answers questions, and windows of the same article that answer none of them."""

    window: Window
    questions: Sequence[AnsweredQuestion]
    neighbours: Sequence[Window]


def make_window_documents(
    passages: Path,
    questions: Path,
    out: Path,
    *,
    tokenizer: str = "embedded",
    options: WindowOptions | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Make both collections in `out`, `KIND/SPLIT/FILES`, and return the content of data.json.

    `passages` are JSON lines as `read_articles` takes them, with a split; `questions` are JSON lines of id,
    text, `pid`, `answers` and `answer_starts`; the first answer counts. Everything is held in memory.
    Raises: InputError if a file is malformed; TrainingError if there are too few articles, or `out` is taken;
        SourceError if the tokenizer cannot be opened.
    """
    given = options or WindowOptions()
    opened = open_tokenizer(tokenizer)
    articles = read_articles(passages)
    asked = _read_questions(questions, articles)
    shares = divide_articles(articles, given)
    cut = WindowCutter(opened, given.chunk_tokens, given.seed)
    left_out: Counter[str] = Counter()
    made: dict[str, Any] = {kind: {} for kind in KINDS}
    with writing_data(out, overwrite=overwrite) as folder:
        for split, (own, others) in shares.items():
            relevant = [
                each
                for article in own
                for each in _relevant_passages(articles[article], asked, cut, given, left_out)
            ]
            pool = [
                found for article in others for each in articles[article] if (found := cut.anywhere(each))
            ]
            if not relevant or len(pool) < given.most_chunks:
                what = "a usable question" if not relevant else f"{given.most_chunks} filler passages"
                raise TrainingError(f"{passages}: the {split} articles lack {what}")
            for kind in KINDS:
                place = MadeSplit(folder / kind / split)
                place.folder.mkdir(parents=True)
                made[kind][split] = _write_split(place, kind, split, relevant, pool, opened, given)
        said = record("window", asdict(given), (tokenizer, opened), [passages, questions], made, left_out)
        write_record(folder, said)
    return said


def divide_articles(articles: Articles, options: WindowOptions) -> dict[str, tuple[list[str], list[str]]]:
    """Give each split the articles of its questions and the articles of Far's filler passages.

    Raises: TrainingError if there are too few.
    """
    test = [name for name, passages in articles.items() if passages[0].split == options.test_split]
    rest = [name for name, passages in articles.items() if passages[0].split != options.test_split]
    if not test:
        splits = sorted({passages[0].split for passages in articles.values()})
        raise TrainingError(
            f"no article is of split {options.test_split!r}, only of {', '.join(map(repr, splits))}"
        )
    held = 2 * (options.distractor_articles + options.dev_articles)
    if len(rest) <= held:
        raise TrainingError(
            f"{len(rest):,} articles are not of split {options.test_split!r}; twice distractor_articles "
            f"({options.distractor_articles}) and dev_articles ({options.dev_articles}) take {held:,}"
        )
    Random(f"{options.seed}/articles").shuffle(rest)
    sizes = (
        options.distractor_articles,
        options.distractor_articles,
        options.dev_articles,
        options.dev_articles,
    )
    bounds = accumulate(sizes, initial=0)
    beside_test, beside_train, dev, beside_dev = (rest[start:end] for start, end in pairwise(bounds))
    return {
        "train": (rest[held:], beside_train),
        "dev": (dev, beside_dev),
        "test": (test, beside_test),
    }


class WindowCutter:
    """Cuts windows of exactly `tokens` tokens between words; the same passage always gives the same one."""

    def __init__(self, tokenizer: TextTokenizer, tokens: int, seed: int) -> None:
        self._tokenizer, self._tokens, self._seed = tokenizer, tokens, seed
        self._anywhere: dict[str, Window | None] = {}
        # Passages of one article are cut several times.
        self._read = lru_cache(maxsize=256)(lambda text: tokenizer.read(text, len(text) + 1))

    def around(self, passage: ArticlePassage, start: int, end: int) -> Window | None:
        """Cut a window that holds the characters [start, end); None if no window of this length does."""
        read = self._read(passage.text)
        begins = [index == 0 or passage.text[read.starts[index] - 1].isspace() for index in range(len(read))]
        begins.append(True)  # the text's end
        places = [
            first
            for first in range(len(read) - self._tokens + 1)
            if begins[first]
            and begins[first + self._tokens]
            and read.starts[first] <= start
            and end <= read.ends[first + self._tokens - 1]
        ]
        # The middle window would put every answer in the middle of its chunk.
        Random(f"{self._seed}/window/{passage.passage_id}").shuffle(places)
        for first in places:
            begin, stop = int(read.starts[first]), int(read.ends[first + self._tokens - 1])
            text = " ".join(passage.text[begin:stop].split())
            # Some tokenizers read a word differently at the beginning of a text.
            if self._tokenizer.count(text) == self._tokens:
                return Window(passage.passage_id, text, begin, stop)
        return None

    def anywhere(self, passage: ArticlePassage) -> Window | None:
        """Cut a window; None if the passage is shorter."""
        name = passage.passage_id
        if name not in self._anywhere:
            self._anywhere[name] = self.around(passage, len(passage.text), 0)
        return self._anywhere[name]


def _relevant_passages(
    passages: Sequence[ArticlePassage],
    asked: Mapping[str, Sequence[AnsweredQuestion]],
    cut: WindowCutter,
    options: WindowOptions,
    left_out: Counter[str],
) -> list[RelevantPassage]:
    """Divide an article's passages: one half answers questions, the other half are their neighbours.

    So no document holds the answer to another document's question without being judged relevant.
    """
    rng = Random(f"{options.seed}/article/{passages[0].article}")
    long_enough = [each for each in passages if cut.anywhere(each) is not None]
    left_out["passages shorter than a chunk"] += len(passages) - len(long_enough)
    if len(long_enough) < options.most_chunks:
        left_out["articles with fewer passages than a document may hold"] += 1
        return []
    order = rng.sample(long_enough, len(long_enough))
    beside = max(options.most_chunks - 1, len(order) // 2)
    neighbours = [found for each in order[:beside] if (found := cut.anywhere(each))]
    chosen: list[RelevantPassage] = []
    for passage in order[beside:]:
        questions = asked.get(passage.passage_id, ())
        # The first question whose answer fits chooses the window; others stay if it holds their answers.
        windows = (
            cut.around(passage, each.start, each.end) for each in rng.sample(questions, len(questions))
        )
        window = next(filter(None, windows), None)
        kept = [
            each for each in questions if window and window.start <= each.start and each.end <= window.end
        ]
        left_out["questions whose answer is not in the window"] += len(questions) - len(kept)
        if window is not None:
            chosen.append(RelevantPassage(window, kept, neighbours))
    return sorted(chosen, key=lambda each: each.window.passage_id)


def _write_split(
    place: MadeSplit,
    kind: str,
    split: str,
    relevant: Sequence[RelevantPassage],
    pool: Sequence[Window],
    tokenizer: TextTokenizer,
    options: WindowOptions,
) -> dict[str, Any]:
    documents = _documents(kind, relevant, pool, options)
    for document in written_documents(place.collection, documents):
        _check_chunks(document, tokenizer, options.chunk_tokens)
    doc_ids = [_doc_id(kind, each) for each in relevant]
    answers = {each.query_id: (each, index) for index, of in enumerate(relevant) for each in of.questions}
    limit: int | None = getattr(options, split)
    chosen = sorted(answers)
    if limit is not None and limit < len(chosen):
        chosen = sorted(Random(f"{options.seed}/questions/{split}").sample(chosen, limit))
    index = LexicalIndex(each.window.text for each in relevant)
    candidates = {}
    for query_id in chosen:
        question, own = answers[query_id]
        scores = index.scores(question.text)
        best = [each for each, _ in index.best(question.text, options.candidates)]
        if own not in best:
            best = [*best[: options.candidates - 1], own]
        candidates[query_id] = rank(
            query_id, [(doc_ids[each], round(float(scores[each]), 4)) for each in best]
        )
    qrels = {query_id: {doc_ids[answers[query_id][1]]: 1} for query_id in chosen}
    texts = {query_id: answers[query_id][0].text for query_id in chosen}
    return {"documents": len(relevant), **write_questions(place, texts, qrels, candidates)}


def _doc_id(kind: str, relevant: RelevantPassage) -> str:
    return f"{kind}-{relevant.window.passage_id}"


def _documents(
    kind: str, relevant: Sequence[RelevantPassage], pool: Sequence[Window], options: WindowOptions
) -> Iterator[MadeDocument]:
    """Place every relevant passage among others; both kinds have the same number of them."""
    for each in relevant:
        rng = Random(f"{options.seed}/document/{each.window.passage_id}")
        chunks = rng.randint(options.fewest_chunks, options.most_chunks)
        rng.seed(f"{options.seed}/{kind}/{each.window.passage_id}")
        place = drawn_place(kind, chunks, rng)
        windows = rng.sample(each.neighbours if kind == "biased" else pool, chunks - 1)
        windows.insert(place - 1, each.window)
        yield MadeDocument(
            _doc_id(kind, each),
            BETWEEN.join(window.text for window in windows),
            [window.passage_id for window in windows],
            {"relevant": place},
        )


def drawn_place(kind: str, chunks: int, rng: Random) -> int:
    """Draw the relevant chunk of a document, counted from 1."""
    if kind == "far":
        return rng.randint(2, chunks)
    behind = chunks - len(BIASED_PLACES)
    weights = [*BIASED_PLACES[:chunks], *[BEHIND / behind] * behind] if behind > 0 else BIASED_PLACES[:chunks]
    return rng.choices(range(1, chunks + 1), weights)[0]


def _check_chunks(document: MadeDocument, tokenizer: TextTokenizer, tokens: int) -> None:
    """Check that the chunks of a document are its passages: their tokens must add up."""
    read = tokenizer.read(document.text, len(document.text) + 1)
    parts = document.text.split(BETWEEN)
    ends = [each - len(BETWEEN) for each in accumulate(len(part) + len(BETWEEN) for part in parts)]
    if len(read) != tokens * len(document.passages) or not np.array_equal(
        read.ends[tokens - 1 :: tokens], ends
    ):
        raise TrainingError(
            f"document {document.doc_id}: its tokens are not those of its passages; choose a tokenizer that "
            "ends words at white space"
        )


def _read_questions(path: Path, articles: Articles) -> dict[str, list[AnsweredQuestion]]:
    """Read questions by the passages that answer them."""
    texts = {each.passage_id: each.text for passages in articles.values() for each in passages}
    questions: dict[str, list[AnsweredQuestion]] = {}
    seen: dict[str, str] = {}
    for where, line in numbered_lines(path):
        fields = json_object(where, line)
        query_id = check_id(where, "the id", named_string(where, fields, QUERY_IDS))
        if query_id in seen:
            raise InputError(f"{where}: the id {query_id!r} is already used at {seen[query_id]}")
        seen[query_id] = where
        passage_id = named_string(where, fields, ("pid",))
        if passage_id not in texts:
            raise InputError(f"{where}: passage {passage_id!r} is not in the collection")
        text = " ".join(named_string(where, fields, QUERY_TEXTS).split())
        if not text:
            raise InputError(f"{where}: the text of question {query_id!r} is empty")
        answer, start = _first_answer(where, fields)
        end = start + len(answer)
        if texts[passage_id][start:end] != answer:
            raise InputError(f"{where}: the answer {answer!r} is not at character {start} of {passage_id!r}")
        questions.setdefault(passage_id, []).append(
            AnsweredQuestion(where, query_id, text, passage_id, start, end)
        )
    if not questions:
        raise InputError(f"{path}: there are no questions; expected JSON lines")
    return questions


def _first_answer(where: str, fields: Mapping[str, Any]) -> tuple[str, int]:
    answers, starts = fields.get("answers"), fields.get("answer_starts")
    match answers, starts:
        case [str(answer), *_], [int(start), *_] if answer and start >= 0:
            return answer, start
    raise InputError(
        f"{where}: 'answers' and 'answer_starts' must list texts and the characters they start at"
    )
