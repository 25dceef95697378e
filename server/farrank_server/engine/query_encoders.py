"""The bi-encoders that compute queries' vectors for first stages: those of a server, or of a tool."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from farrank_calls.errors import InvalidArgument, NotFound
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage.kinds import QueryEncoder
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_server.config.schema import ServerConfig
    from farrank_server.engine.engine import Engine
    from farrank_server.engine.loaded.ranker import LoadedRanker


class EngineEncoders:
    """The bi-encoders that a server has loaded. A call before that waits for `provide`.

    `asked` has the version of each one that an index uses, by its name.
    """

    def __init__(self) -> None:
        self._engine: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        self.asked: dict[str, str] = {}

    def provide(self, engine: "Engine") -> None:
        """Set the engine, and let waiting calls continue."""
        self._engine.set_result(engine)

    async def __call__(self, ranker: str) -> QueryEncoder:
        """Find a bi-encoder. Raises: ConfigError if no ranker of that name is one."""
        engine = await asyncio.shield(self._engine)
        try:
            version = engine.versions.bi_encoder(ranker).encodings_version
        except NotFound as error:
            raise ConfigError(error.message) from None
        self.asked[ranker] = version
        return _EngineEncoder(engine, ranker, version)


@dataclass(frozen=True, slots=True)
class _EngineEncoder:
    engine: "Engine"
    ranker: str
    version: str

    async def encode(self, query: str, timeout_s: float, call: CallRecord = NO_CALL) -> NDArray[np.float32]:
        """Encode a query, in turn with all other work on the device."""
        return await self.engine.encode_query(self.ranker, query, time.monotonic() + timeout_s, call)


class OwnEncoders:
    """The bi-encoders of a configuration, for tools without a server: each is loaded when it is needed.

    They are loaded and run as in a server, on a thread of their own, which `close` ends.
    """

    def __init__(self, config: "ServerConfig") -> None:
        from farrank_server.engine.device.device_loop import DeviceThread

        self._config = config
        self._device = DeviceThread()
        self._loaded: dict[str, LoadedRanker] = {}

    async def __call__(self, ranker: str) -> QueryEncoder:
        """Load a bi-encoder, once. Raises: ConfigError if there is none of that name, or it cannot load."""
        loaded = await asyncio.wrap_future(self._device.submit(self._load, ranker))
        return _OwnEncoder(self, loaded, loaded.encodings_version)

    def close(self) -> None:
        """Release the loaded bi-encoders and end the thread."""
        for loaded in self._loaded.values():
            self._device.submit(loaded.release)
        self._device.shutdown()

    async def encode(self, loaded: "LoadedRanker", query: str) -> NDArray[np.float32]:
        """Encode a query after all earlier ones. Shapes: -> (H,)."""
        return await asyncio.wrap_future(self._device.submit(self._encode, loaded, query))

    def _load(self, name: str) -> "LoadedRanker":
        from farrank_server.engine.loaded.document_cache import DocumentCache
        from farrank_server.engine.loaded.loading import load_rankers

        if name not in self._loaded:
            if name not in self._config.rankers:
                known = ", ".join(self._config.rankers)
                raise ConfigError(f"no ranker {name!r} is configured; known are: {known}")
            only = replace(self._config, rankers={name: self._config.rankers[name]})
            (scorer,) = load_rankers(only, DocumentCache(0))
            (loaded, *others) = scorer.members
            if others or loaded.spec.similarity is None:
                raise ConfigError(f"ranker {name!r} is not a bi-encoder")
            self._loaded[name] = loaded
        return self._loaded[name]

    @staticmethod
    def _encode(loaded: "LoadedRanker", query: str) -> NDArray[np.float32]:
        read = loaded.reader.read_query(query)
        if not len(read):
            raise InvalidArgument(f"query: holds no token that ranker {loaded.name} can read")
        (row,) = loaded.runtime.encode([loaded.reader.query_input(read)]).rows()
        vector: NDArray[np.float32] = row.to("cpu").vectors.float().numpy()
        return vector


@dataclass(frozen=True, slots=True)
class _OwnEncoder:
    encoders: OwnEncoders
    loaded: "LoadedRanker"
    version: str

    async def encode(self, query: str, timeout_s: float, call: CallRecord = NO_CALL) -> NDArray[np.float32]:
        """Encode a query."""
        return await self.encoders.encode(self.loaded, query)
