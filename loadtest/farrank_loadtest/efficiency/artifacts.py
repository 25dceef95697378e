"""Rankers to be timed: the papers' models at full size with random weights, or trained ones."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from farrank_loadtest.efficiency.pairs import Pair
from farrank_loadtest.errors import InputError, LoadtestError
from farrank_rankers.artifact import save_ranker
from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.errors import RankerError
from farrank_rankers.files.location import EMBEDDED, locate
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.files.tokenizer_files import TokenizerFiles
from farrank_rankers.loading import build
from farrank_rankers.papers.models import PaperModel
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import TextTokenizer


def common_tokenizer() -> TextTokenizer:
    """Open the tokenizer that all rankers get: WordPiece, 30,522 words, so that token counts compare.

    Raises: LoadtestError if the embedded model is not installed.
    """
    try:
        return TextTokenizer(TokenizerFiles.read(locate(EMBEDDED).folder))
    except RankerError as error:
        raise LoadtestError(str(error)) from error


def check_trained(trained: Mapping[str, Path], pairs: Mapping[str, Pair]) -> None:
    """Refuse trained rankers that are not what they are given for.

    Raises: LoadtestError naming the ranker; InputError naming the file.
    """
    models = {each.name: each for pair in pairs.values() for each in (pair.ranker, pair.firstp)}
    for name, folder in trained.items():
        if name not in models:
            raise LoadtestError(
                f"trained ranker {name!r}: the papers have none of this name, only {', '.join(models)}"
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


@contextmanager
def artifacts(
    pair: Pair, tokenizer: TextTokenizer, trained: Mapping[str, Path], temporary: Path
) -> Iterator[Mapping[str, Path]]:
    """Give a folder for the ranker and one for its FirstP, by name; those made in `temporary` go when left.

    Raises: LoadtestError if one cannot be made.
    """
    folders = {}
    try:
        for model in (pair.firstp, pair.ranker):
            folders[model.name] = trained.get(model.name, temporary / model.name)
            if model.name not in trained:
                _make(model, tokenizer, folders[model.name])
        yield folders
    finally:
        for folder in temporary.iterdir():
            shutil.rmtree(folder)


def _make(model: PaperModel, tokenizer: TextTokenizer, folder: Path) -> None:
    try:
        reader = Reader(model.spec, tokenizer, BackboneFacts.from_config(model.config))
        # Half the bytes on disk; what a server computes in is its own setting, whatever the file has.
        save_ranker(build(reader, dict(model.config), seed=0).to(torch.bfloat16), folder)
    except RankerError as error:
        raise LoadtestError(f"ranker {model.name}: {error}") from error
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error
