"""First stages side by side and a large collection: the queries, the figures and the generated texts."""

from collections import Counter
from itertools import islice
from json import loads
from pathlib import Path

from farrank_bench.first_stages import latencies_ms, search_all
from farrank_bench.first_stages import test_sets as sets_of
from farrank_bench.large_collection import (
    QUERY_RANKS,
    QUERY_TERMS,
    IndexFigures,
    generated_lines,
    queries,
    word,
)
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import FirstStages
from support.memory_first_stage import MemoryFirstStage


async def test_all_questions_are_asked_and_every_caller_takes_the_next() -> None:
    stage = MemoryFirstStage()
    stages = FirstStages({"things": stage}, FirstStageConfig())
    await stages.start()
    run = await search_all(stages, "things", {"q1": "river", "q2": "salt", "q3": "nothing"})
    assert {query: [each.doc_id for each in found] for query, found in run.items()} == {
        "q1": ["rhine", "sea"],
        "q2": ["bread"],
        "q3": [],
    }
    stage.asked.clear()
    taken = await latencies_ms(stages, "things", [f"q{n}" for n in range(20)], callers=4)
    assert len(taken) == 20
    assert sorted(query for query, _ in stage.asked) == sorted(f"q{n}" for n in range(20))


def test_the_demo_is_a_test_set_without_any_data() -> None:
    (demo,) = sets_of(None)
    assert demo.queries.keys() == demo.qrels.keys()
    assert demo.flags == ["--pydoc"]


def test_generated_words_follow_zipfs_law_and_the_seed() -> None:
    lines = list(generated_lines(600, 150, seed=3))
    assert lines == list(islice(generated_lines(700, 150, seed=3), 512)) + lines[512:]
    assert lines[:256] != list(generated_lines(256, 150, seed=4))
    documents = [loads(line) for line in lines]
    assert [each["id"] for each in documents] == [f"d{n}" for n in range(600)]
    lengths = sorted(len(each["text"].split()) for each in documents)
    assert 130 < lengths[300] < 170
    counts = Counter(found for each in documents for found in each["text"].split())
    # Rank r has the share 1 / (r + 2.7): the tenth word has a little over a fifth of the first one's.
    assert 0.15 < counts[word(10)] / counts[word(0)] < 0.3
    assert len(counts) > 10_000


def test_every_rank_has_its_word() -> None:
    assert len({word(rank) for rank in range(20_000)}) == 20_000
    asked = queries(5, seed=1)
    assert asked == queries(5, seed=1)
    allowed = {word(rank) for rank in QUERY_RANKS}
    assert all(len(each.split()) == QUERY_TERMS and set(each.split()) <= allowed for each in asked)


def test_bytes_are_counted_by_part(tmp_path: Path) -> None:
    (tmp_path / "tokens" / "key").mkdir(parents=True)
    (tmp_path / "_0.fdt").write_bytes(b"x" * 30)
    (tmp_path / "tokens" / "key" / "ids.u16").write_bytes(b"x" * 8)
    built = IndexFigures(tmp_path, documents=2, characters=100, seconds=4.0, cpu_s=6.0, peak_mib=1.0)
    rows = {row.what: row.measured for row in built.rows()}
    assert rows["bytes per document: Lucene's index with its texts"] == "15"
    assert rows["bytes per document: tokens"] == "4"
    assert rows["documents/s"].startswith("0 (6 s")
