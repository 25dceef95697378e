"""Several rankers as one: a document's score is the mean of their scores."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_rankers.errors import SpecError
from farrank_rankers.family import ENSEMBLE
from farrank_rankers.files.model_files import SPEC_FILE, lists_members, locate
from farrank_rankers.json_values import read_json

if TYPE_CHECKING:
    from farrank_rankers.ranker import DocumentScore, Ranker

# A member's name is that of its folder, and part of its name in a server.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, eq=False)
class Ensemble:
    """Rankers by name, the most trusted first: its chunks determine the deciding passage.

    Source: the mean of members' scores as in the ensemble runs of TREC DL 2021's SPLADE participation.
    """

    members: Mapping[str, "Ranker"]

    def __post_init__(self) -> None:
        """Refuse names that are not possible for a folder.

        Raises: SpecError naming the member.
        """
        _check_names(list(self.members), "members")

    @property
    def version(self) -> str:
        """The hash of the members' versions, in their order."""
        return ensemble_version(ranker.version for ranker in self.members.values())

    def score(self, query: str, documents: Sequence[str], batch_size: int = 16) -> list["DocumentScore"]:
        """Score documents offline, in their order: the mean of the members' scores, the first one's evidence.

        Raises: ValueError if the query holds no token.
        """
        by_member = [ranker.score(query, documents, batch_size) for ranker in self.members.values()]
        return [
            replace(each[0], score=mean_score([found.score for found in each]))
            for each in zip(*by_member, strict=True)
        ]


def mean_score(scores: Sequence[float]) -> float:
    """Average the members' raw scores."""
    return sum(scores) / len(scores)


def ensemble_version(versions: Iterable[str]) -> str:
    """Hash members' versions to one of 16 hexadecimal digits."""
    return hashlib.blake2b(" ".join(versions).encode(), digest_size=8).hexdigest()


def save_ensemble(ensemble: Ensemble, folder: str | Path) -> None:
    """Write each member's artifact into a folder of its name, and a ranker.json that lists them."""
    from farrank_rankers.files.save import save_ranker

    folder = Path(folder)
    for name, ranker in ensemble.members.items():
        save_ranker(ranker, folder / name)
    spec = {"family": ENSEMBLE, "members": list(ensemble.members)}
    (folder / SPEC_FILE).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")


def is_ensemble(source: str | Path, *, download: bool = False) -> bool:
    """Check whether a source is an ensemble's folder.

    Raises: SourceError if there is no such source, or its ranker.json is damaged.
    """
    return lists_members(locate(source, download=download).folder)


def member_folders(source: str | Path, download: bool = False) -> dict[str, Path]:
    """Find an ensemble's members, in their order.

    Raises: SpecError naming the file and what is wrong with its list.
    """
    folder = locate(source, download=download).folder
    path = folder / SPEC_FILE
    values = read_json(path)
    unknown = sorted(values.keys() - {"family", "members"})
    if unknown:
        raise SpecError(f"{path}: the spec has the unknown key {unknown[0]}; known are family, members")
    names = values.get("members")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpecError(f"{path}: members is {names!r}; it must be a list of folder names")
    _check_names(names, f"{path}: members")
    for name in names:
        if lists_members(folder / name):
            raise SpecError(f"{path}: member {name} is itself an ensemble; members must be single rankers")
    return {name: folder / name for name in names}


def _check_names(names: Sequence[str], where: str) -> None:
    if len(names) < 2:
        raise SpecError(f"{where} has {len(names)} names; an ensemble has at least 2")
    if len(set(names)) < len(names):
        raise SpecError(f"{where} names a member twice: {', '.join(names)}")
    for name in names:
        if not _NAME.fullmatch(name):
            raise SpecError(f"{where}: {name!r} cannot be a folder's name; use letters, digits and _.-")
