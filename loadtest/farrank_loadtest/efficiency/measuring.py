"""Serve each ranker together with its FirstP, measure both, and write each result at once.

Rankers are the papers' models at full size with random weights, or trained rankers.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from farrank_loadtest.depths import Depth
from farrank_loadtest.efficiency.points import Pair
from farrank_loadtest.efficiency.run_times import RelativeTimes, RepeatedCall, Results, time_in_turns
from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.kept_files import writing_to
from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.errors import RankerError
from farrank_rankers.files.model_files import EMBEDDED, SPEC_FILE, locate
from farrank_rankers.files.open import open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.weights import build
from farrank_rankers.papers import PaperModel
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_trec.errors import InputError


def common_tokenizer() -> TextTokenizer:
    """Open the tokenizer of all rankers, WordPiece with 30,522 words, so that token counts compare.

    Raises: LoadtestError if the embedded model is not installed.
    """
    try:
        return TextTokenizer(TokenizerFiles.read(locate(EMBEDDED).folder))
    except RankerError as error:
        raise LoadtestError(str(error)) from error


def check_trained(trained: Mapping[str, Path], pairs: Mapping[str, Pair]) -> None:
    """Check that trained rankers are of the models that they are given for.

    Raises: LoadtestError naming the ranker; InputError naming the file.
    """
    models = {each.name: each for pair in pairs.values() for each in (pair.ranker, pair.firstp)}
    for name, folder in trained.items():
        if name not in models:
            raise LoadtestError(
                f"trained ranker {name!r}: the papers have no ranker of this name, only {', '.join(models)}"
            )
        path = folder / SPEC_FILE
        try:
            family = RankerSpec.from_json(path.read_text(encoding="utf-8")).family
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        except (RankerError, ValueError) as error:
            raise InputError(f"{path}: {error}") from error
        if family != models[name].spec.family:
            raise InputError(f"{path}: family is {family}; {name} is {models[name].spec.family}")


def _make(model: PaperModel, tokenizer: TextTokenizer, temporary: Path) -> Path:
    folder = temporary / model.name
    try:
        reader = Reader(model.spec, tokenizer, BackboneFacts.from_config(model.config))
        # bf16 takes half the bytes on disk; the server's precision is a setting that ignores the file's.
        with writing_to(folder):
            save_ranker(build(reader, dict(model.config), seed=0).to(torch.bfloat16), folder)
    except RankerError as error:
        raise LoadtestError(f"ranker {model.name}: {error}") from error
    return folder


# Serves the rankers of these folders in a separate process; gives its address.
Start = Callable[[Mapping[str, Path]], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class EfficiencySweep:
    """The work of every ranker, how it is served, the folder of results, and a callback for progress."""

    work: RepeatedCall
    tokenizer: TextTokenizer
    trained: Mapping[str, Path]
    start: Start
    folder: Path
    tell: Callable[[str], None]

    def run(self, pairs: Sequence[Pair], results: Results) -> Iterator[Results]:
        """Measure the pairs that have no result yet; write and yield all results after each pair.

        Raises: LoadtestError at the first pair that cannot be measured.
        """
        # One temporary folder for all pairs, made before any work, so that an interruption removes it.
        with TemporaryDirectory(prefix="farrank-efficiency-") as temporary:
            for number, pair in enumerate(pairs, start=1):
                name = pair.name
                if name in results.measured:
                    self.tell(f"{number} of {len(pairs)}: {name} is already measured")
                    continue
                self.tell(f"{number} of {len(pairs)}: {name} and {pair.firstp.name}")
                measured = self._measure(pair, Path(temporary))
                results = replace(results, measured={**results.measured, name: measured})
                results.write(self.folder)
                yield results

    def _measure(self, pair: Pair, temporary: Path) -> RelativeTimes:
        first, name = pair.firstp.name, pair.ranker.name
        with ExitStack() as serving:
            try:
                folders = {
                    each.name: self.trained.get(each.name) or _make(each, self.tokenizer, temporary)
                    for each in (pair.firstp, pair.ranker)
                }
                longest = {each: open_reader(folder).max_input_tokens for each, folder in folders.items()}
                address = serving.enter_context(self.start(folders))
            finally:
                # Delete the files as soon as they are loaded: the largest ranker's take gigabytes.
                for folder in temporary.iterdir():
                    shutil.rmtree(folder)
            depths: dict[str, Depth] = {first: "all", name: pair.depth}
            timed = time_in_turns(address, depths, self.work, self.tell)
        return RelativeTimes(pair.name, first, timed[name], timed[first], longest[name], longest[first])
