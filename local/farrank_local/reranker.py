"""A ranker in this process: the client's calls and answers, without a server."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from farrank_client import Client, Ranking
from farrank_client.calls import Documents, RerankOptions, rerank
from farrank_local.in_process import InProcess
from farrank_server.config.schema import LimitsConfig, RankerConfig, ServerConfig

# Nobody else waits: a call may take as long as it takes, and hold whatever fits into memory.
_FOREVER_S = 30 * 86_400.0
_UNLIMITED = 2**31 - 1
# Calls whose chunks share batches.
IN_FLIGHT = 8


class Reranker(Client):
    """Reads and ranks whole documents in this process, with the runtimes and the depth of the server.

    `source` is a folder, a hub name, `embedded` or `embedded:NAME`, as `farrank serve --ranker` takes it;
    `settings` are its keys in the configuration (docs/how-to/serving.md): `family`, `runtime`, `precision`,
    `window` and so on. It is a `Client` whose calls never leave the process: answers, options and exceptions
    are the same. Threads may share it. Close it, or use it in a `with`.
    Raises: ConfigError (a ValueError) naming the setting, or if the ranker cannot be loaded.
    """

    def __init__(self, source: str = "embedded", **settings: Any) -> None:
        config = ServerConfig(
            rankers={"ranker": RankerConfig(source, **settings)},
            limits=LimitsConfig(
                max_documents=_UNLIMITED,
                max_queued_tokens=_UNLIMITED,
                max_held_characters=_UNLIMITED,
                deadline_margin=1.0,
            ),
        )
        self._local = InProcess(config)
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

        Several calls are in flight, so that batches are full. `progress` shows a bar.
        Raises: as `rank`, at the place of the query that fails.
        """
        pending: deque[Any] = deque()
        try:
            for query, documents in _shown(queries, progress):
                call = rerank(query, documents, options)
                begun = self._local.submit(
                    call.method, call.request, call.response_type, timeout_s=_FOREVER_S
                )
                pending.append((call, begun))
                if len(pending) > IN_FLIGHT:
                    done, future = pending.popleft()
                    yield done.read(future.result())
            while pending:
                done, future = pending.popleft()
                yield done.read(future.result())
        finally:
            for _, future in pending:
                future.cancel()


def _shown(queries: Iterable[tuple[str, Documents]], progress: bool) -> Iterable[tuple[str, Documents]]:
    if not progress:
        return queries
    # Imported here because only few calls need it.
    from tqdm.auto import tqdm

    shown: Iterable[tuple[str, Documents]] = tqdm(queries, unit="query")
    return shown
