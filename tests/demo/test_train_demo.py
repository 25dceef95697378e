"""`make train-demo`, with a few documents, a tiny backbone and two steps per ranker."""

import importlib
import json
import pydoc
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from farrank_cli.terminated import sigterm_interrupts
from farrank_demo.questions import load_questions
from farrank_demo.train_demo import Course, Lesson, fifteen_minutes, run_course
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import build_index
from farrank_rankers.chunking import Chunking
from farrank_rankers.files.open import open_ranker
from farrank_training.configuration import TrainingConfig

MODULES = ("bisect", "calendar", "heapq", "pprint", "queue", "sched", "shutil", "textwrap", "zlib")


@pytest.fixture(scope="module")
def backbone(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny backbone with its weights."""
    folder = Path(shutil.copytree(tiny_backbone, tmp_path_factory.mktemp("tiny") / "bert"))
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def test_the_course_of_the_demo_is_one_of_the_issue() -> None:
    course = fifteen_minutes()
    assert course.backbone == "embedded"
    assert [lesson.family for lesson in course.lessons] == ["firstp", "parade-attn"]
    assert len({lesson.config.measure for lesson in course.lessons}) == 1


@pytest.mark.slow
def test_rankers_are_trained_and_the_better_one_is_served(
    backbone: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Only their beginnings: the embedded ranker reads whole documents, which would take most of the time.
    documents = {
        name: pydoc.plain(pydoc.render_doc(importlib.import_module(name)))[:8_000] for name in MODULES
    }
    index, out = tmp_path / "index", tmp_path / "out"
    build_index((IndexDocument(*each) for each in documents.items()), index)
    config = TrainingConfig(accumulation=4, dev_depth=5, learning_rate=1e-2, log_every=1)
    course = Course(
        backbone,
        (
            Lesson("firstp", Chunking("first", 24, 24, 24), config, queries=8),
            Lesson("parade-attn", Chunking("disjoint", 24, 24, 48), config, queries=8),
        ),
        per_document=3,
        candidates=4,
    )
    questions = load_questions()[:2]
    with sigterm_interrupts() as interrupts:
        run_course(course, documents, questions, index, out, interrupts)
    printed = capfd.readouterr().out

    reports = {
        lesson.family: json.loads((out / lesson.family / "training.json").read_text())
        for lesson in course.lessons
    }
    best = max(reports, key=lambda family: reports[family]["measures"]["RR"])
    assert all(report["steps"] == 2 for report in reports.values())
    assert f"exporting {best}, the better of the two" in printed
    assert [path.parent.name for path in out.glob("*/exports")] == [best]
    first, second = (open_ranker(out / family) for family in reports)
    assert second.spec.provenance["backbone_trained_as"] == f"firstp {first.version}"

    figures = re.findall(r"^   (.+?) +nDCG@10 ([\d.]+)   MRR@10 ([\d.]+)$", printed, re.MULTILINE)
    assert [name for name, *_ in figures] == ["Lucene (BM25)", f"trained {best}", "embedded maxsim"]
    assert all(0 <= float(value) <= 1 for _, *values in figures for value in values)
    assert f"ranker trained: {best} over" in printed
