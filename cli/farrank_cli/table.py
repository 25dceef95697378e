"""The subcommands by name. Their modules load only when they are called for.

So `farrank --help` needs neither torch nor a server, and a room that adds a command adds a line here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class Command:
    """Where a subcommand lives, which extra it needs beyond the base install, and what it does."""

    module: str
    extra: str | None
    summary: str

    def load(self) -> "Loaded":
        """Import the command's module.

        Raises: ModuleNotFoundError if a package of its extra is missing.
        """
        module = import_module(self.module)
        return Loaded(module.configure, module.run)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A command's two functions: `configure(parser)` adds its flags, `run(args)` gives the exit code."""

    configure: Callable[..., None]
    run: Callable[..., int]


COMMANDS = {
    "serve": Command("farrank_cli.commands.serve", "server", "answer rerank calls over gRPC"),
    "index": Command("farrank_cli.commands.index", "lucene", "build an index for the server to search"),
    "rerank": Command("farrank_cli.commands.rerank", None, "order documents by a query"),
    "search": Command(
        "farrank_cli.commands.search", None, "search an index of a server and rerank what it finds"
    ),
    "rankers": Command(
        "farrank_cli.commands.rankers",
        None,
        "list a server's rankers, or the papers' models, or an artifact's exports; make a ranker",
    ),
    "export": Command(
        "farrank_cli.commands.export",
        "export",
        "write a ranker's graphs for ONNX Runtime, OpenVINO, TensorRT",
    ),
    "loadtest": Command("farrank_cli.commands.loadtest", "loadtest", "measure a server under load"),
}
