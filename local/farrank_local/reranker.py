"""A ranker in this process: the client's calls and answers, without a server."""

import operator
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, Unpack

from farrank.v1 import rerank_pb2 as pb
from farrank_client import Client, Ranking
from farrank_client.calls import Documents, RerankOptions, rerank
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_local.in_process import InProcess
from farrank_server.config.schema import LimitsConfig, RankerConfig, ServerConfig

# Nobody else waits: a call may take as long as it takes, and hold whatever fits into memory.
_FOREVER_S = 30 * 86_400.0
_UNLIMITED = 2**31 - 1
_LIMITS = LimitsConfig(
    max_documents=_UNLIMITED,
    max_document_bytes=_UNLIMITED,
    max_query_bytes=_UNLIMITED,
    max_queued_tokens=_UNLIMITED,
    max_held_characters=_UNLIMITED,
    deadline_margin=1.0,
)
# `rank_all` has this many documents in flight, so that batches are full of chunks of similar lengths, and at
# least two calls: one is tokenized while the other is on the device.
DOCUMENTS_IN_FLIGHT = 128
_LEAST_CALLS, _MOST_CALLS = 2, 64


class Reranker(Client):
    """Reads and ranks whole documents in this process, with the runtimes and the depth of the server.

    `source` is a folder, a hub name, `embedded` or `embedded:NAME`, as `farrank serve --ranker` takes it;
    `settings` are its keys in the configuration (docs/how-to/serving.md): `family`, `runtime`, `precision`,
    `window` and so on. `indexes` are folders that `farrank index` wrote, by name: calls may search them, and
    rank their documents without sending texts. It is a `Client` whose calls never leave the process: answers,
    options and exceptions are the same. Threads may share it. Close it, or use it in a `with`.
    Raises: ConfigError (a ValueError) naming the setting, or if the ranker or an index cannot be loaded.
    """

    def __init__(
        self,
        source: str = "embedded",
        *,
        indexes: Mapping[str, str | os.PathLike[str]] | None = None,
        **settings: Any,
    ) -> None:
        held = {name: Bm25Config(Path(folder)) for name, folder in (indexes or {}).items()}
        self._load(
            ServerConfig(
                rankers={"ranker": RankerConfig(source, **settings)},
                first_stage=FirstStageConfig(indexes=held),
            )
        )

    @classmethod
    def configured(cls, config: ServerConfig) -> Self:
        """Load the rankers and indexes of a server's configuration; its limits do not count.

        Raises: ConfigError.
        """
        made = cls.__new__(cls)
        made._load(config)
        return made

    def _load(self, config: ServerConfig) -> None:
        self._local = InProcess(replace(config, limits=_LIMITS))
        super().__init__(transport=self._local, timeout_s=_FOREVER_S)

    def rank(self, query: str, documents: Documents, **options: Unpack[RerankOptions]) -> Ranking:
        """Order documents by a query, reading each as a whole: see `Client.rerank`."""
        return self.rerank(query, documents, **options)

    def rank_all(
        self,
        queries: Iterable[tuple[str, Documents]],
        *,
        progress: bool = False,
        **options: Unpack[RerankOptions],
    ) -> Iterator[Ranking]:
        """Rank documents for many queries, pairs (query, documents); yields rankings in their order.

        Several calls are in flight, so that batches are full. `progress` shows a bar of the answers.
        Raises: as `rank`, at the place of the query that fails.
        """
        rankings = self._rank_all(queries, options)
        return _shown(rankings, operator.length_hint(queries)) if progress else rankings

    def _rank_all(
        self, queries: Iterable[tuple[str, Documents]], options: RerankOptions
    ) -> Iterator[Ranking]:
        finished: dict[int, Future[pb.RerankResponse]] = {}
        place = 0
        with closing(as_finished(self, queries, options)) as answers:
            for number, answer in answers:
                finished[number] = answer
                while place in finished:
                    yield Ranking.from_pb(finished.pop(place).result())
                    place += 1


def as_finished(
    reranker: Reranker, queries: Iterable[tuple[str, Documents]], options: RerankOptions
) -> Generator[tuple[int, Future[pb.RerankResponse]], None, None]:
    """Rank documents for many queries; yields the number and the answer of each query when it has finished.

    A query that fails has its error as its answer.
    Raises: TypeError or InvalidArgument for a document or an option that cannot be sent.
    """
    begun: dict[Future[pb.RerankResponse], _Begun] = {}
    try:
        for number, (query, documents) in enumerate(queries):
            call = rerank(query, documents, options)
            answer = reranker._local.submit(
                call.method, call.request, call.response_type, timeout_s=_FOREVER_S
            )
            begun[answer] = _Begun(number, len(documents))
            while _are_enough(begun.values()):
                yield from _ended(begun)
        while begun:
            yield from _ended(begun)
    finally:
        for each in begun:
            each.cancel()


class _Begun(NamedTuple):
    number: int
    documents: int


def _are_enough(begun: Collection[_Begun]) -> bool:
    documents = sum(each.documents for each in begun)
    return len(begun) > _MOST_CALLS or (len(begun) > _LEAST_CALLS and documents > DOCUMENTS_IN_FLIGHT)


def _ended(
    begun: dict[Future[pb.RerankResponse], _Begun],
) -> Iterator[tuple[int, Future[pb.RerankResponse]]]:
    """Wait until a call ends; yields those that have, and takes them out."""
    for each in wait(begun, return_when=FIRST_COMPLETED).done:
        yield begun.pop(each).number, each


def _shown(rankings: Iterator[Ranking], queries: int) -> Iterator[Ranking]:
    # Imported here because only few calls need it.
    from tqdm.auto import tqdm

    return iter(tqdm(rankings, total=queries or None, unit="query"))
