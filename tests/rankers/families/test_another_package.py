"""A family in another package: one module with its classes, one row, one entry point."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from farrank_exporters.trace import trace_ranker
from farrank_rankers import family as families
from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.families.classes import aggregator_class, encoder_class
from farrank_rankers.family import FAMILIES, EvidenceKind, family_named
from farrank_rankers.features import Features, stacked
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_runtimes.torch_runtime import TorchRuntime

ROW = """
from dataclasses import dataclass

from farrank_rankers.family import Family, VectorOptions


@dataclass(frozen=True, slots=True)
class BestOfOptions(VectorOptions):
    best: int = 2


ROW = Family("pair", "sliding", BestOfOptions, ".passages:VectorEncoder", "lab_aggregator:BestOf")
NO_ROW = 3
"""

AGGREGATOR = """
import torch

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.families.passages import MaxP
from lab_family import BestOfOptions


class BestOf(MaxP):
    '''The sum of a document's best chunks.'''

    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.best = spec.options_as(BestOfOptions).best

    def score(self, state, masks):
        present = state.masked_fill(~masks, -torch.inf)  # (V, D, C)
        best = present.topk(min(self.best, state.shape[1])).values
        return best.masked_fill(best == -torch.inf, 0.0).sum(dim=-1)
"""
ENTRY_POINTS = """[farrank.families]
best-of = lab_family:ROW
no-row = lab_family:NO_ROW
no-module = lab_missing:ROW
"""
ROOT = Path(__file__).parents[3]
TEXTS = ("a search engine ranks passages of the long document by a query", "hello world", "")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make Python see a package with a family as installed."""
    folder = tmp_path / "site-packages"
    info = folder / "lab-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "lab_family.py").write_text(ROW)
    (folder / "lab_aggregator.py").write_text(AGGREGATOR)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(folder)
    families._from_another_package.cache_clear()
    yield folder
    families._from_another_package.cache_clear()
    for name in ("lab_family", "lab_aggregator"):
        sys.modules.pop(name, None)


def test_a_family_of_another_package_is_saved_opened_and_served(
    lab: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    made = new_ranker("best-of", cross_encoder, Chunking("sliding", 8, 4, 40), seed=3, options={"best": 3})
    save_ranker(made, tmp_path / "ranker")
    ranker = open_ranker(tmp_path / "ranker")
    found = ranker.score("hello", TEXTS)
    for each in found:
        assert each.score == pytest.approx(sum(sorted(each.chunk_scores)[-3:]), abs=1e-5)
    assert ranker.aggregator.evidence is EvidenceKind.CHUNK_SCORE
    assert made.version == ranker.version

    runtime, reader = TorchRuntime(ranker), ranker.reader
    query = reader.read_query("hello")
    split = [reader.split(reader.read_document(text)) for text in TEXTS]
    inputs = [[reader.chunk_input(query, chunk) for chunk in chunks] for chunks in split]
    served = runtime.score([stacked(runtime.encode(each).rows()) for each in inputs])
    assert served.scores == pytest.approx([each.score for each in found], abs=1e-5)
    trace_ranker(ranker, tmp_path)
    assert (tmp_path / "aggregator.onnx").is_file()


def test_its_row_is_read_without_torch_or_its_aggregator(
    lab: Path, cross_encoder: Path, tmp_path: Path
) -> None:
    save_ranker(new_ranker("best-of", cross_encoder), tmp_path / "ranker")
    code = (
        f"import sys; sys.path.insert(0, {str(lab)!r}); from farrank_rankers.files.open import open_reader; "
        f"print(open_reader({str(tmp_path / 'ranker')!r}).spec.options.best); "
        "sys.exit(bool({'torch', 'lab_aggregator'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.usefixtures("lab")
def test_its_problems_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"must be one of firstp, .*, biencoder, best-of, no-module, no-row"):
        family_named("best")
    with pytest.raises(SpecError, match="family no-row: lab_family:NO_ROW is 3; it must be a Family"):
        family_named("no-row")
    with pytest.raises(SpecError, match="family no-module: lab_missing:ROW cannot be imported: No module"):
        family_named("no-module")


def test_an_artifact_without_its_package_names_the_family(
    lab: Path, cross_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_ranker(new_ranker("best-of", cross_encoder), tmp_path / "ranker")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(lab)])
    families._from_another_package.cache_clear()
    with pytest.raises(SpecError, match="family is 'best-of'; it must be one of firstp, "):
        open_reader(tmp_path / "ranker")


def test_the_documents_example_works(
    cross_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "how-to" / "own-family.md").read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (lab/\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(code)
    group, line = re.findall(r"```toml\n\[project\.entry-points\.\"(.*?)\"\]\n(.*?)\n```", page)[0]
    info = tmp_path / "lab-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(tmp_path)
    ranker = new_ranker("medianp", cross_encoder, Chunking("sliding", 8, 4, 40), seed=3)
    assert ranker.spec.family == "medianp"
    vectors = torch.randn(1, 3, 32)
    mask = torch.ones(1, 3, dtype=torch.bool)
    scores = ranker.aggregator.eval().interact(Features(vectors), mask, None)[0].tolist()
    assert ranker.aggregator(Features(vectors), mask).item() == sorted(scores)[1]
    assert all(torch.tensor(found.score).isfinite() for found in ranker.score("hello", TEXTS))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_names_classes_that_are_there(name: str) -> None:
    row = FAMILIES[name]
    assert encoder_class(row).__doc__
    assert issubclass(aggregator_class(row), torch.nn.Module)


def test_a_class_that_is_not_there_is_named() -> None:
    row = replace(FAMILIES["maxp"], aggregator=".passages:NoP")
    with pytest.raises(SpecError, match=r"\.passages:NoP cannot be imported: .*NoP"):
        aggregator_class(row)
