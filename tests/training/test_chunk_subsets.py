"""Training with adaptive depth reads the chunks that the server would choose, in drawn numbers."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.chunking import WHOLE_DOCUMENT, adjusted
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokenizer import finished
from farrank_training.batches import Collator
from farrank_training.chunk_subsets import chunks_to_learn, chunks_to_validate, promising_chunks
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import Group
from farrank_training.training_run import train
from farrank_training.validation import ValidationSet, rerank
from support.training_groups import Groups, MakeRanker, Texts, triples, validation

pytestmark = pytest.mark.usefixtures("one_thread")

FILLER = "hello world and the long document of neural models "
# Chunks with the query's words stand behind every limit of the ranker, and in the middle.
FIRST = FILLER * 30 + "search engine query " + FILLER * 30 + "search engine"
FOUND = (FIRST, FILLER * 40 + "search " + FILLER)
GROUP = Group("q", "search engine", FOUND)
ADAPTIVE = TrainingConfig(accumulation=2, depth="adaptive")


def planned(ranker: Ranker, plan: DepthPlan) -> Ranker:
    """Give a plan to a ranker, and take its limit on a document's tokens away."""
    reader = ranker.reader
    whole = adjusted(reader.spec.chunking, max_document_tokens=WHOLE_DOCUMENT)
    spec = replace(reader.spec, depth=plan, chunking=whole)
    ranker.reader = Reader(spec, reader.tokenizer, reader.backbone)
    return ranker


def text_of(group: Group, index: int, start: int, end: int) -> str:
    return group.documents[index][start:end]


def test_the_best_chunks_of_whole_documents_are_read(make_ranker: MakeRanker) -> None:
    usual = make_ranker("maxp").reader
    reader = planned(make_ranker("maxp"), DepthPlan()).reader
    first, second = promising_chunks(reader, reader.read_query(GROUP.query), FOUND, 2)
    assert [chunk.start for chunk in first] == sorted(chunk.start for chunk in first)
    assert all("search" in text_of(GROUP, 0, chunk.start, chunk.end) for chunk in first)
    assert any("search" in text_of(GROUP, 1, chunk.start, chunk.end) for chunk in second)
    limit = usual.split(usual.read_document(FOUND[0]))[-1].end
    assert first[-1].start > limit


def test_a_group_has_a_drawn_number_of_chunks_and_no_more_than_its_plan(make_ranker: MakeRanker) -> None:
    ranker = planned(make_ranker("maxp"), DepthPlan((Round(1.0, 2), Round(0.5, 3))))
    collator = Collator(ranker.reader, draws=7)
    groups = [replace(GROUP, epoch=epoch) for epoch in range(60)]
    read = [collator([group])["counts"] for group in groups]
    assert {counts[0] for counts in read} == {1, 2, 3, 4, 5}
    assert all(one == other for one, other in read)
    again, other = Collator(ranker.reader, draws=7), Collator(ranker.reader, draws=8)
    assert read == [again([group])["counts"] for group in reversed(groups)][::-1]
    assert read != [other([group])["counts"] for group in groups]
    assert {chunks_to_learn(ranker.spec, 2, str(draw)) for draw in range(60)} == {1, 2}
    # 2 of all, and 3 of half of them.
    assert chunks_to_validate(ranker.spec) == 4
    assert chunks_to_validate(make_ranker("maxp").spec) == chunks_to_validate(make_ranker("avgp").spec) == 2


def test_a_transformer_over_chunks_reads_no_more_than_it_has_places_for(make_ranker: MakeRanker) -> None:
    ranker = planned(make_ranker("parade-transf-rand"), DepthPlan((Round(1.0, 1000),)))
    found = promising_chunks(ranker.reader, ranker.reader.read_query(GROUP.query), FOUND, 1000)
    places = ranker.spec.most_chunks()
    assert places is not None
    steps = [ranker.reader.document_steps(text, WHOLE_DOCUMENT) for text in FOUND]
    whole = [len(ranker.reader.split(finished(each))) for each in steps]
    assert [len(chunks) for chunks in found] == [min(places, count) for count in whole]
    options = replace(ranker.spec.options, trained_chunks=3)  # type: ignore[call-arg]
    spec = replace(ranker.spec, options=options)
    few = Reader(spec, ranker.reader.tokenizer, ranker.reader.backbone)
    found = promising_chunks(few, few.read_query(GROUP.query), FOUND, 1000)
    assert [len(chunks) for chunks in found] == [3, 3]


@pytest.mark.parametrize("family", ["maxp", "parade-attn", "parade-transf-rand", "cedr-knrm"])
def test_validation_reads_as_the_plan_does(make_ranker: MakeRanker, family: str) -> None:
    ranker = planned(make_ranker(family), DepthPlan()).eval()
    texts = {f"d{n}": f"{n} " + FILLER * (3 * n + 1) + "search engine" * (n % 2) for n in range(9)}
    dev = ValidationSet({"q": "search engine"}, {"q": {"d3": 1}}, {"q": [*texts]}, Texts(**texts))
    run = rerank(ranker, dev, ADAPTIVE)
    query = ranker.reader.read_query("search engine")
    chosen = promising_chunks(ranker.reader, query, [*texts.values()], 2)
    assert max(map(len, chosen)) == 2
    scores = {each.doc_id: each.score for each in run["q"]}
    for doc_id, chunks in zip(texts, chosen, strict=True):
        inputs = ranker.tensors([ranker.reader.chunk_input(query, chunk) for chunk in chunks])
        with torch.inference_mode():
            alone = float(ranker(inputs, [len(chunks)], None)[0])
        assert scores[doc_id] == pytest.approx(alone, abs=1e-4)
    assert scores != {each.doc_id: each.score for each in rerank(ranker, dev, TrainingConfig())["q"]}


@pytest.mark.parametrize("family", ["parade-transf-rand", "cedr-knrm"])
def test_a_trained_ranker_is_adaptive_and_a_resumed_run_has_its_weights(
    make_ranker: MakeRanker, tmp_path: Path, family: str
) -> None:
    groups = Groups(triples(8))

    class Told:
        """Asks for the end after two steps."""

        def __init__(self) -> None:
            self.left = 2

        @property
        def came(self) -> bool:
            self.left -= 1
            return self.left < 0

        def held(self) -> Any:
            return nullcontext()

    more: dict[str, Any] = {"seed": 5, "cpu": True, "validation": validation()}
    train(planned(make_ranker(family), DepthPlan()), groups, ADAPTIVE, tmp_path / "one", **more)
    ranker = planned(make_ranker(family), DepthPlan())
    interrupted: dict[str, Any] = {"interrupts": Told()}
    with pytest.raises(KeyboardInterrupt):
        train(ranker, groups, ADAPTIVE, tmp_path / "two", **more, **interrupted)
    ranker = planned(make_ranker(family), DepthPlan())
    train(ranker, groups, ADAPTIVE, tmp_path / "two", resume=True, **more)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]
    ranker = open_ranker(tmp_path / "one")
    assert why_not_adaptive(ranker.spec) is None
    assert ranker.spec.depth == DepthPlan()
    # A transformer over chunks has learned as many positions as the plan reads.
    assert ranker.spec.most_chunks() == (2 if family == "parade-transf-rand" else None)


@pytest.mark.parametrize("family", ["biencoder", "firstp"])
def test_a_ranker_that_cannot_be_adaptive_is_not_trained_for_it(
    make_ranker: MakeRanker, tmp_path: Path, family: str
) -> None:
    with pytest.raises(TrainingError, match="depth is adaptive; it must be all: family"):
        train(make_ranker(family), Groups(triples(8)), ADAPTIVE, tmp_path / "run", cpu=True)
    assert not (tmp_path / "run" / "ranker.json").exists()
