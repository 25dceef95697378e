"""The papers' rankers on tiny backbones, a collection of articles, and the command as a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_rankers import papers

if TYPE_CHECKING:
    from support.commands import Outcome

from support.efficiency_runs import PASSAGE, tiny_backbones


@pytest.fixture
def tiny_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the papers' models small."""
    monkeypatch.setattr(papers, "BACKBONES", tiny_backbones())


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four articles of five passages, 1,900 tokens each. The passages are stored in the wrong order."""
    path = tmp_path_factory.mktemp("articles") / "passages.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {"pid": f"{article}_{pos}", "article": article, "pos": pos, "text": f"{pos}. {PASSAGE}"}
            )
            + "\n"
            for article in ("a", "b", "c", "d")
            for pos in (4, 2, 0, 1, 3)
        )
    )
    return path


@pytest.fixture
def efficiency(farrank: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """`farrank loadtest efficiency` as a function."""
    return partial(farrank, "loadtest", "efficiency")
