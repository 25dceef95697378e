"""Measure ranker after ranker, each beside its own FirstP, and keep each as soon as it is measured."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from farrank_loadtest.efficiency.artifacts import artifacts
from farrank_loadtest.efficiency.pairs import Pair
from farrank_loadtest.efficiency.result import Measured, Results
from farrank_loadtest.efficiency.timing import Work, time_in_turns
from farrank_rankers.sources import open_reader
from farrank_rankers.tokenizer import TextTokenizer

# Serves the rankers of these folders in a process of its own; gives its address.
Start = Callable[[Mapping[str, Path]], AbstractContextManager[str]]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is asked of every ranker, who serves it, where results go, and who is told."""

    work: Work
    tokenizer: TextTokenizer
    trained: Mapping[str, Path]
    start: Start
    folder: Path
    tell: Callable[[str], None]

    def run(self, pairs: Sequence[Pair], results: Results) -> Iterator[Results]:
        """Measure the pairs that have no result yet; yield all results after each, as the folder has them.

        Raises: LoadtestError at the first that cannot be measured.
        """
        # One for all, made before anybody is told of a start: an interruption finds it owned.
        with TemporaryDirectory(prefix="farrank-efficiency-") as temporary:
            for number, pair in enumerate(pairs, start=1):
                name = pair.ranker.name
                if name in results.measured:
                    self.tell(f"{number} of {len(pairs)}: {name} is measured already")
                    continue
                self.tell(f"{number} of {len(pairs)}: {name} beside {pair.firstp.name}")
                measured = self._measure(pair, Path(temporary))
                results = replace(results, measured={**results.measured, name: measured})
                results.write(self.folder)
                yield results

    def _measure(self, pair: Pair, temporary: Path) -> Measured:
        names = (pair.firstp.name, pair.ranker.name)
        with ExitStack() as serving:
            # The files go as soon as they are loaded: those of the largest ranker take gigabytes.
            with artifacts(pair, self.tokenizer, self.trained, temporary) as made:
                longest = {name: open_reader(folder).max_input_tokens for name, folder in made.items()}
                address = serving.enter_context(self.start(made))
            timed = time_in_turns(address, names, self.work, self.tell)
        first, name = names
        return Measured(name, first, timed[name], timed[first], longest[name], longest[first])
