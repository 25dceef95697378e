"""Biased and Far: passages as long as a chunk, the relevant passage's position, and the splits."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from farrank_rankers.chunking import Chunking, chunk_bounds
from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.articles import ArticlePassage, read_articles
from farrank_training.data_sets.made_data import SPLITS, MadeSplit
from farrank_training.data_sets.window_documents import (
    KINDS,
    WindowCutter,
    WindowOptions,
    divide_articles,
    drawn_place,
    make_window_documents,
)
from farrank_training.errors import TrainingError
from farrank_trec import read_qrels, read_queries, read_run
from farrank_trec.errors import InputError
from support.field_files import folder_content, read_json_lines, write_lines

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]

CHUNK = 24
WORDS = ["sea", "bread", "naïve", "1984", "the", "of", "unbelievable", "a.b", "harbour", "stone", "under"]
OPTIONS = WindowOptions(
    chunk_tokens=CHUNK, most_chunks=5, candidates=6, distractor_articles=3, dev_articles=2, test_split="dev"
)


def make_source(folder: Path, articles: int = 17, passages: int = 14) -> dict[str, Path]:
    """Make articles of passages of 10 to 60 words. Each has three questions, whose answers are only there."""
    rng = Random(3)
    passage_lines: list[dict[str, Any]] = []
    questions: list[dict[str, Any]] = []
    for article in range(articles):
        for place in range(passages):
            pid = f"a{article}_{place}"
            words = rng.choices(WORDS, k=rng.randint(10, 60))
            answers = [f"answer{article}x{place}x{number}" for number in range(3)]
            for answer in answers:
                words.insert(rng.randint(0, len(words)), answer)
            text = "  ".join(words)
            split = "dev" if article < 4 else "train"
            passage_lines.append(
                {"pid": pid, "article": f"a{article}", "pos": place, "split": split, "text": text}
            )
            for number, answer in enumerate(answers):
                where = {"answers": [answer, "other"], "answer_starts": [text.index(answer), 0]}
                questions.append(
                    {"qid": f"{pid}_{number}", "text": f"where is\t{answer}", "pid": pid, **where}
                )
    return {
        "passages": write_lines(folder / "passages.jsonl", passage_lines),
        "queries": write_lines(folder / "queries.jsonl", questions),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_source(tmp_path_factory.mktemp("articles"))


@pytest.fixture(scope="module")
def made(source: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both collections."""
    out = tmp_path_factory.mktemp("windows") / "out"
    make_window_documents(source["passages"], source["queries"], out, options=OPTIONS)
    return out


def documents_of(made: Path, kind: str, split: str) -> list[dict[str, Any]]:
    return read_json_lines(MadeSplit(made / kind / split).collection)


EVERYWHERE = pytest.mark.parametrize(("kind", "split"), [(kind, split) for kind in KINDS for split in SPLITS])


@EVERYWHERE
def test_disjoint_chunks_of_a_document_are_its_passages(
    made: Path, source: dict[str, Path], tokenizer: TextTokenizer, kind: str, split: str
) -> None:
    texts = {each["pid"]: " ".join(each["text"].split()) for each in read_json_lines(source["passages"])}
    chunking = Chunking("disjoint", CHUNK, CHUNK, 6 * CHUNK)
    documents = documents_of(made, kind, split)
    assert documents
    for document in documents:
        read = tokenizer.read(document["text"], 6 * CHUNK)
        bounds = chunk_bounds(chunking, len(read)).tolist()
        cut = [document["text"][read.starts[first] : read.ends[end - 1]] for first, end in bounds]
        assert cut == document["text"].split("\n\n")
        assert len(cut) == len(document["passages"])
        assert 2 <= len(cut) <= 5
        for piece, passage in zip(cut, document["passages"], strict=True):
            assert tokenizer.count(piece) == CHUNK
            # Whole words of the passage.
            assert f" {piece} " in f" {texts[passage]} "


@EVERYWHERE
def test_the_answer_stands_in_the_relevant_passage_alone(made: Path, kind: str, split: str) -> None:
    place = MadeSplit(made / kind / split)
    documents = {each["id"]: each for each in documents_of(made, kind, split)}
    queries, qrels, run = (
        read_queries(place.queries),
        read_qrels(place.qrels),
        read_run(place.candidates),
    )
    assert queries.keys() == qrels.keys() == run.keys()
    for query_id, text in queries.items():
        answer = text.split()[-1]
        holding = [each for each in documents.values() if answer in each["text"].split()]
        ((doc_id, grade),) = qrels[query_id].items()
        assert [each["id"] for each in holding] == [doc_id]
        assert grade == 1
        relevant = documents[doc_id]["relevant"]
        assert answer in documents[doc_id]["text"].split("\n\n")[relevant - 1].split()
        assert documents[doc_id]["passages"][relevant - 1] == query_id.rpartition("_")[0]
        candidates = [each.doc_id for each in run[query_id]]
        assert doc_id in candidates
        assert len(set(candidates)) == len(candidates) == min(6, len(documents))
        assert set(candidates) <= documents.keys()


def test_both_kinds_ask_the_same_of_the_same_passages_among_others(made: Path) -> None:
    for split in SPLITS:
        biased, far = (documents_of(made, kind, split) for kind in KINDS)
        for one, other in zip(biased, far, strict=True):
            assert len(one["passages"]) == len(other["passages"])
            at = one["relevant"] - 1, other["relevant"] - 1
            assert at[1] > 0
            assert one["text"].split("\n\n")[at[0]] == other["text"].split("\n\n")[at[1]]
            (article,) = {each.partition("_")[0] for each in one["passages"]}
            own = one["passages"][at[0]]
            assert all(each == own or each.partition("_")[0] != article for each in other["passages"])
        assert (made / "biased" / split / "queries.tsv").read_bytes() == (
            made / "far" / split / "queries.tsv"
        ).read_bytes()


def test_splits_share_no_article_and_no_relevant_passage_appears_elsewhere(made: Path) -> None:
    of_split: list[set[str]] = []
    for split in SPLITS:
        documents = [each for kind in KINDS for each in documents_of(made, kind, split)]
        of_split.append({each.partition("_")[0] for document in documents for each in document["passages"]})
        relevant = {each["passages"][each["relevant"] - 1] for each in documents}
        beside = {
            passage
            for each in documents
            for place, passage in enumerate(each["passages"], 1)
            if place != each["relevant"]
        }
        assert not relevant & beside
    assert sum(map(len, of_split)) == len(set.union(*of_split))
    test = documents_of(made, "biased", "test")
    assert {each.partition("_")[0] for document in test for each in document["passages"]} == {
        "a0",
        "a1",
        "a2",
        "a3",
    }


def test_places_follow_the_papers_distribution_and_far_is_never_first() -> None:
    rng = Random(1)
    biased = Counter(drawn_place("biased", 6, rng) for _ in range(20_000))
    shares = [100 * biased[place] / 20_000 for place in range(1, 7)]
    assert shares == pytest.approx([85.9, 9.1, 2.6, 1.2, 0.6, 0.6], abs=0.8)
    far = Counter(drawn_place("far", 5, rng) for _ in range(8_000))
    assert far.keys() == {2, 3, 4, 5}
    assert [far[place] for place in range(2, 6)] == pytest.approx([2000] * 4, rel=0.1)
    # Fewer chunks keep the proportions. With more, 0.1% are after the sixth.
    two = Counter(drawn_place("biased", 2, rng) for _ in range(8_000))
    assert two[1] / 8_000 == pytest.approx(85.9 / 95, abs=0.02)
    eight = Counter(drawn_place("biased", 8, rng) for _ in range(60_000))
    assert 0 < eight[7] + eight[8] < 200


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    source: dict[str, Path], made: Path, tmp_path: Path
) -> None:
    def make(name: str, **changed: Any) -> dict[str, bytes]:
        given = {each: getattr(OPTIONS, each) for each in OPTIONS.__dataclass_fields__} | changed
        make_window_documents(
            source["passages"], source["queries"], tmp_path / name, options=WindowOptions(**given)
        )
        return folder_content(tmp_path / name)

    first = folder_content(made)
    assert make("again") == first
    assert make("other", seed=1)["far/train/collection.jsonl"] != first["far/train/collection.jsonl"]
    # Fewer questions about the same documents.
    fewer = make("fewer", test=5)
    assert fewer["far/test/collection.jsonl"] == first["far/test/collection.jsonl"]
    assert fewer["far/test/queries.tsv"].count(b"\n") == 5
    assert set(fewer["far/test/queries.tsv"].splitlines()) < set(first["far/test/queries.tsv"].splitlines())


def test_a_window_holds_what_it_should_between_words(tokenizer: TextTokenizer) -> None:
    rng = Random(2)
    cutter = WindowCutter(tokenizer, CHUNK, 0)
    places: set[int] = set()
    for number in range(60):
        text = " ".join(rng.choices(WORDS, k=50))
        start = text.index(" ", 40) + 1
        end = text.find(" ", start)
        window = cutter.around(ArticlePassage(str(number), "a", 0, text, ""), start, end)
        assert window is not None
        assert window.start <= start < end <= window.end
        assert tokenizer.count(window.text) == CHUNK
        assert window.text == text[window.start : window.end]
        assert f" {window.text} " in f" {text} "
        places.add(tokenizer.count(text[window.start : start]))
    # The answer is not always in the middle or at an end.
    assert len(places) > 8
    short = ArticlePassage("p", "a", 0, "too short", "")
    assert cutter.anywhere(short) is None
    assert cutter.around(short, 0, 3) is None


def test_articles_are_divided_by_the_options(source: dict[str, Path]) -> None:
    articles = read_articles(source["passages"])
    shares = divide_articles(articles, OPTIONS)

    assert {split: (len(own), len(beside)) for split, (own, beside) in shares.items()} == {
        "train": (3, 3),
        "dev": (2, 2),
        "test": (4, 3),
    }
    assert sorted(each for own, beside in shares.values() for each in (*own, *beside)) == sorted(articles)
    with pytest.raises(TrainingError, match=r"13 articles are not of split 'dev'; twice .* take 14"):
        divide_articles(articles, WindowOptions(distractor_articles=5, dev_articles=2))
    with pytest.raises(TrainingError, match="no article is of split 'nope', only of 'dev', 'train'"):
        divide_articles(articles, WindowOptions(test_split="nope"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_tokens": 7}, "chunk_tokens is 7; it must be at least 8"),
        ({"fewest_chunks": 1}, "fewest_chunks is 1; it must be at least 2"),
        ({"fewest_chunks": 4, "most_chunks": 3}, "most_chunks is 3; it must be at least 4"),
        ({"candidates": 1}, "candidates is 1; it must be at least 2"),
        ({"dev": 0}, "dev is 0; it must be at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        WindowOptions(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pid": "gone"}, ":1: passage 'gone' is not in the collection"),
        ({"answers": []}, ":1: 'answers' and 'answer_starts' must list"),
        ({"answer_starts": ["3"]}, ":1: 'answers' and 'answer_starts' must list"),
        ({"answer_starts": [10_000]}, ":1: the answer 'answer0x0x0' is not at character 10000"),
        ({"text": " "}, ":1: the text of question 'a0_0_0' is empty"),
        ({"qid": "a0_0_1"}, ":2: the id 'a0_0_1' is already used at .*:1"),
    ],
)
def test_questions_that_are_malformed(
    source: dict[str, Path], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    first, *rest = read_json_lines(source["queries"])
    queries = write_lines(tmp_path / "q.jsonl", [first | change, *rest])

    with pytest.raises(InputError, match=message):
        make_window_documents(source["passages"], queries, tmp_path / "out", options=OPTIONS)
    assert not (tmp_path / "out").exists()


def test_the_command_makes_both_and_says_what_they_hold(
    farrank: Farrank, source: dict[str, Path], made: Path, tmp_path: Path
) -> None:
    flags: list[object] = [each for name, path in source.items() for each in (f"--{name}", path)]
    flags += ["--chunk-tokens", CHUNK, "--most-chunks", 5, "--candidates", 6, "--distractor-articles", 3]
    flags += ["--dev-articles", 2, "--out", tmp_path / "out"]
    outcome = farrank("data", "window", *flags)

    assert (outcome.exit_code, outcome.err) == (0, "")
    assert folder_content(tmp_path / "out") == folder_content(made)
    said = json.loads((made / "data.json").read_text(encoding="utf-8"))
    rows = [line.split() for line in outcome.out.splitlines() if line.startswith(str(tmp_path))]
    assert [row[:4] for row in rows] == [
        [
            str(tmp_path / "out" / kind / split),
            str(said["splits"][kind][split]["documents"]),
            str(said["splits"][kind][split]["queries"]),
            "6",
        ]
        for kind in KINDS
        for split in SPLITS
    ]
    assert f"left out: {said['left_out']['passages shorter than a chunk']:,} passages" in outcome.out
    assert farrank("data", "window", *flags).err.count("--overwrite replaces") == 1


@pytest.mark.data
def test_squad_gives_natural_passages(data_folder: Path, tmp_path: Path) -> None:
    some = [f"t{number:03}" for number in range(24)] + ["d000", "d001", "d002"]

    def part(name: str) -> Path:
        with gzip.open(data_folder / "squad" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            lines = (line.rstrip() for line in file)
            return write_lines(
                tmp_path / f"{name}.jsonl", (each for each in lines if json.loads(each)["pid"][:4] in some)
            )

    options = WindowOptions(distractor_articles=4, dev_articles=2, test=40)
    said = make_window_documents(part("passages"), part("queries"), tmp_path / "out", options=options)

    assert said["splits"]["far"]["test"]["queries"] == 40
    places = Counter(each["relevant"] for each in documents_of(tmp_path / "out", "biased", "train"))
    assert places[1] / places.total() == pytest.approx(0.88, abs=0.08)
    assert all(each["candidates"]["R@20"] == 1 for each in said["splits"]["far"].values())
