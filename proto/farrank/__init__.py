"""Farrank's public names: `from farrank import Client, Document`. `farrank.v1` is the wire.

The names are those of the client, `farrank_client`, which is imported at the first use of a name. A program
that needs only the wire, such as the server, imports nothing of the client. `Reranker` is of the distribution
farrank, and not among the names of a star import: it loads torch.
"""

# The star import gives type checkers the client's names; the list below is pinned by a test.
# ruff: noqa: F403, F405
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farrank_client import *
    from farrank_local.reranker import Reranker as Reranker

__all__ = [
    "AccessDenied",
    "AdaptiveDepth",
    "AsyncClient",
    "AsyncTransport",
    "Catalog",
    "Client",
    "ContextPiece",
    "DeadlineExceeded",
    "Depth",
    "DepthMode",
    "Document",
    "Evidence",
    "FailedPrecondition",
    "FarrankError",
    "FirstStageScore",
    "IndexInfo",
    "Internal",
    "InvalidArgument",
    "Limits",
    "MockTransport",
    "NotFound",
    "Parity",
    "Passage",
    "Priority",
    "RankerInfo",
    "RankerVersion",
    "Ranking",
    "RerankOptions",
    "ResourceExhausted",
    "Result",
    "RetryPolicy",
    "ScoreScale",
    "Sentence",
    "Timings",
    "Tls",
    "TokenMatch",
    "Transport",
    "Unavailable",
    "Unimplemented",
    "Usage",
]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name

    def __getattr__(name: str) -> Any:
        """Import the client at the first use of a public name, and keep the name here."""
        if name not in (*__all__, "Reranker"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "Reranker":
            try:
                module = import_module("farrank_local.reranker")
            except ModuleNotFoundError as error:
                raise ImportError(
                    f"farrank.Reranker needs pip install 'farrank[server]' (no module {error.name!r})"
                ) from error
        else:
            module = import_module("farrank_client")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
