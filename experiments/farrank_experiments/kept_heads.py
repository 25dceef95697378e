"""Trained heads in a step's folder. A step that was interrupted continues after the last kept one."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from farrank_experiments.heads import Learned
from farrank_rankers.ranker import Ranker


class KeptHeads:
    """The heads in a folder, by name, each with how it learned."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def trained(self, ranker: Ranker, name: str, train: Callable[[], Learned]) -> Learned:
        """Fill a ranker with a head that is kept already, or train it and keep the result."""
        facts = self._facts(name)
        if facts.exists():
            fill_head(ranker, self.file(name))
            return self.learned(name)
        learned = train()
        save_head(ranker, self.file(name))
        # The last file tells that the head is whole.
        unfinished = facts.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(learned)), encoding="utf-8")
        unfinished.replace(facts)
        return learned

    def learned(self, name: str) -> Learned:
        """Tell how a kept head learned. Raises: OSError if it is not there."""
        return Learned(**json.loads(self._facts(name).read_text(encoding="utf-8")))

    def file(self, name: str) -> Path:
        """The file of a head's weights."""
        return self._folder / f"{name}.safetensors"

    def _facts(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def save_head(ranker: Ranker, path: Path) -> None:
    """Save all weights of a ranker except its backbone's."""
    save_file(_head_of(ranker), path)


def fill_head(ranker: Ranker, path: Path) -> None:
    """Load the weights of `save_head` into a ranker. Raises: ValueError if they are another family's."""
    kept, wanted = load_file(path), _head_of(ranker)
    if kept.keys() != wanted.keys():
        raise ValueError(f"{path} does not hold a head of {ranker.spec.family}")
    ranker.load_state_dict(kept, strict=False)


def _head_of(ranker: Ranker) -> dict[str, Tensor]:
    weights = ranker.state_dict()
    return {name: each for name, each in weights.items() if not name.startswith("encoder.backbone.")}
