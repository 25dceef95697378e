"""Which rankers are measured, each against which FirstP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farrank_loadtest.errors import LoadtestError
from farrank_rankers.papers.models import PaperModel


@dataclass(frozen=True, slots=True)
class Pair:
    """A ranker, and the one on the same backbone that reads the first chunk alone."""

    ranker: PaperModel
    firstp: PaperModel


def all_pairs(models: Mapping[str, PaperModel]) -> dict[str, Pair]:
    """Pair every ranker that reads on with its FirstP."""
    pairs = {}
    for name, model in models.items():
        firstp = min(
            (
                each
                for each in models.values()
                if each.spec.backbone == model.spec.backbone and each.spec.chunking.kind == "first"
            ),
            key=lambda each: each.spec.chunking.window,
        )
        if firstp.name != name:
            pairs[name] = Pair(model, firstp)
    return pairs


def chosen_pairs(pairs: Mapping[str, Pair], names: Sequence[str]) -> list[Pair]:
    """Look up pairs by their ranker's name, all where none is named.

    Raises: LoadtestError if there is no such ranker, or it is a FirstP itself.
    """
    firsts = {pair.firstp.name for pair in pairs.values()}
    for name in names:
        if name in firsts:
            raise LoadtestError(f"ranker {name!r}: is a FirstP, which is measured beside every other")
        if name not in pairs:
            raise LoadtestError(
                f"ranker {name!r}: the papers have none of this name, only {', '.join(pairs)}"
            )
    return [pair for name, pair in pairs.items() if not names or name in names]
