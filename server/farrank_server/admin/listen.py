"""The port of the operator's contract: its token, and errors as a status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from farrank_calls.errors import FarrankError, redacted
from farrank_server.access.token_file import TokenFile, read_token
from farrank_server.admin.methods import SERVICE, AdminMethods
from farrank_server.config.schema import AdminConfig
from farrank_server.listen import check_port, host_and_port, is_loopback
from farrank_server.wire.metadata import MAX_METADATA_BYTES, Context, header_in, metadata_of
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

KEY = "listen.admin"

# Recorded queries with their documents.
MAX_REQUEST_BYTES = 256 * 2**20

# An operator's programs make a few calls at once.
MAX_CALLS = 16


def check_admin(config: AdminConfig) -> None:
    """Check that the port can be bound, and that other machines need a token. Raises: ConfigError."""
    if config.port is None:
        return
    if config.token_file is not None:
        read_token(config.token_file, f"{KEY}.token_file")
    elif not is_loopback(config.host):
        raise ConfigError(
            f"{KEY}.host: is {config.host}, which other machines may reach; {KEY}.token_file is then needed"
        )
    check_port(f"{KEY}.port", config.host, config.port)


class AdminListener:
    """Serves the operator's contract after `open`. Belongs to the event loop.

    Raises: ConfigError if the token cannot be read or the address cannot be bound.
    """

    def __init__(self, config: AdminConfig, methods: AdminMethods) -> None:
        check_admin(config)
        assert config.port is not None
        self._token = None
        if config.token_file is not None:
            self._token = TokenFile(config.token_file, f"{KEY}.token_file")
            if not is_loopback(config.host):
                log.warning("%s: the token crosses the network unencrypted", KEY)
        self._changes: set[asyncio.Task[Message]] = set()
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_CALLS,
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ],
        )
        handlers = {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(getattr(methods, method.name), method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in SERVICE.methods
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),)
        )
        self._host = config.host
        self.port = self._server.add_insecure_port(host_and_port(config.host, config.port))

    @property
    def address(self) -> str:
        """The address on which the port listens."""
        return host_and_port(self._host, self.port)

    async def open(self) -> None:
        """Answer calls."""
        await self._server.start()
        log.info("changes of rankers are taken on %s", self.address)

    async def close(self) -> None:
        """Answer no more calls, and give up changes that are not done."""
        await self._server.stop(0)
        for change in self._changes:
            change.cancel()
        await asyncio.gather(*self._changes, return_exceptions=True)

    def _ended(self, change: "asyncio.Task[Message]") -> None:
        self._changes.discard(change)
        # The caller may have gone, so the log says it, too.
        if not change.cancelled() and (error := change.exception()) is not None:
            known = isinstance(error, FarrankError | ConfigError)
            log.warning("a change of the rankers failed: %s", error if known else redacted(error))

    def _handler(
        self, method: Callable[[Any], Coroutine[Any, Any, Message]], name: str
    ) -> Callable[[Message, Context], Awaitable[Message]]:
        async def call(request: Message, context: Context) -> Message:
            shown = header_in(metadata_of(context))("authorization")
            if self._token is not None and not await asyncio.to_thread(self._token.is_shown_by, shown):
                await context.abort(
                    grpc.StatusCode.UNAUTHENTICATED,
                    "the token is missing or wrong; see listen.admin.token_file",
                )
            # A change goes on if its caller leaves: half of it would be worse.
            change = asyncio.create_task(method(request))
            self._changes.add(change)
            change.add_done_callback(self._ended)
            try:
                return await asyncio.shield(change)
            except FarrankError as error:
                code, message = error.code, error.message
            except ConfigError as error:
                code, message = grpc.StatusCode.FAILED_PRECONDITION, "; ".join(error.problems)
            except Exception as error:
                log.error("%s failed: %s", name, redacted(error))
                code, message = grpc.StatusCode.INTERNAL, "the server failed; its log says why"
            await context.abort(code, message)
            raise AssertionError("abort raises")

        return call
