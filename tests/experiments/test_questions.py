"""Questions to ask, and their documents as arrangements of passages."""

from __future__ import annotations

from pathlib import Path

from farrank_experiments.contenders import passage_ranker
from farrank_experiments.questions import BIASED, FAR, HARDER
from farrank_experiments.questions import test_questions as questions_to_ask
from farrank_experiments.settings import quick
from farrank_experiments.source_articles import MadeData, make_data
from support.articles import write_articles


def test_harder_far_has_the_passages_of_biased_at_the_places_of_far(tmp_path: Path) -> None:
    settings = quick("embedded")
    made = tmp_path / "made"
    made.mkdir()
    make_data(write_articles(tmp_path), settings, made)
    reader = passage_ranker("embedded", settings).reader

    asked = questions_to_ask(MadeData(made), reader, settings)

    assert len(asked) == settings.test_questions
    for question in asked:
        of_kinds = (question.conditions[kind] for kind in (BIASED, FAR, HARDER))
        for relevant, (biased, far, harder) in enumerate(zip(*of_kinds, strict=True)):
            assert harder.index(relevant) == far.index(relevant) > 0
            others = [passage for passage in harder if passage != relevant]
            assert others == [passage for passage in biased if passage != relevant]
