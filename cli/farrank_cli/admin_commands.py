"""`farrank rankers list|load|unload|swap|canary`: see and change the rankers of a server while it serves."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from farrank.v1 import admin_pb2 as pb
from farrank.v1 import admin_pb2_grpc
from farrank_cli.connection import MAX_KEY_CHARACTERS
from farrank_cli.exit_codes import DONE, REFUSED, TRY_AGAIN, CommandError, told_in_a_line
from farrank_cli.flags import flag, pair, positive
from farrank_cli.terminal import print_columns
from farrank_trec.errors import InputError
from farrank_trec.lines import json_object, named_string, numbered_lines

# Loading a large model takes minutes.
TIMEOUT_S = 900.0

# The server limits the size of a request itself.
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

ADMIN_ACTIONS = {
    "list": "list the loaded versions of a server's rankers",
    "load": "load a ranker under a new name",
    "unload": "serve a ranker no longer",
    "swap": "replace a ranker by another version, or by its canary",
    "canary": "give another version of a ranker a share of its calls, change the share, or stop it",
}


def add_admin_flags(name: str, parser: argparse.ArgumentParser) -> None:
    """Add the flags of one action."""
    add = partial(flag, parser)
    if name == "list":
        add("--json", "print one JSON object instead of a table")
    else:
        parser.add_argument("name", metavar="NAME", help="the ranker's name")
    if name in ("load", "swap", "canary"):
        meaning = "a folder on the server, a hub name, 'embedded' or 'embedded:NAME'"
        if name == "load":
            parser.add_argument("source", metavar="SOURCE", help=meaning)
        else:
            parser.add_argument(
                "source", metavar="SOURCE", nargs="?", help=f"{meaning}; without it: the canary"
            )
        add("--set KEY=VALUE", "a key of the ranker's entry, such as precision=bf16", repeated=True)
    if name == "canary":
        add("--share S", "share of the calls, from 0 to 1", float)
        add("--stop", "give all calls to the version that serves, and free the canary, also during a trial")
    if name in ("swap", "canary"):
        meaning = 'recorded queries for a trial, one {"query": …, "documents": […]} per line'
        add("--recorded JSONL", meaning, Path)
        add("--min-tau T", "least mean Kendall's tau with the version that serves (the server's 0.8)", float)
        meaning = "largest ratio of median latencies, new over old (the server's 1.5)"
        add("--max-latency-ratio R", meaning, float)
    add("--admin HOST:PORT", "the server's listen.admin", default="localhost:50052")
    add("--token-file FILE", "file with the token of the server's listen.admin.token_file", Path)
    add("--wait-s S", "maximum wait for the outcome", positive, TIMEOUT_S)


def run_admin(args: argparse.Namespace) -> int:
    """Send the request, wait for the outcome and print it.

    Raises: CommandError, one line with the server's message.
    """
    with _connected(args) as stub:
        {"list": _list, "load": _load, "unload": _unload, "swap": _swap, "canary": _canary}[args.action](
            args, stub
        )
    return DONE


@contextmanager
def _connected(args: argparse.Namespace) -> Iterator[Any]:
    """Open a connection; each method of the result is called with the request alone."""
    metadata = [] if args.token_file is None else [("authorization", f"Bearer {_token(args.token_file)}")]
    with grpc.insecure_channel(args.admin, options=_OPTIONS) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)  # type: ignore[no-untyped-call]  # generated

        class Methods:
            def __getattr__(self, name: str) -> Any:
                return partial(getattr(stub, name), timeout=args.wait_s, metadata=metadata)

        try:
            yield Methods()
        except grpc.RpcError as error:
            code, said = error.code(), " ".join((error.details() or "").split())
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                said = f"no outcome after {args.wait_s:g} s; the change goes on"
            again = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            raise CommandError(
                f"{args.admin}: {said} [{code.name}]", TRY_AGAIN if again else REFUSED
            ) from error


def _token(path: Path) -> str:
    with told_in_a_line(file=path), path.open(encoding="utf-8", errors="replace") as file:
        words = file.read(MAX_KEY_CHARACTERS + 1).split()
    if len(words) != 1 or not words[0].isascii():
        raise CommandError(f"--token-file {path}: must hold one word of ASCII and nothing else")
    return words[0]


def _list(args: argparse.Namespace, stub: Any) -> None:
    listed = stub.ListVersions(pb.ListVersionsRequest())
    rows = [
        {
            "ranker": each.name,
            "version": each.version,
            "role": pb.VersionRole.Name(each.role).removeprefix("VERSION_ROLE_").lower(),
            "share": each.share,
            "source": each.source,
            "weight_bytes": each.weight_bytes,
            "calls_in_flight": each.calls_in_flight,
            "configured": each.configured,
        }
        for each in listed.versions
    ]
    limit = listed.max_weight_bytes if listed.HasField("max_weight_bytes") else None
    if args.json:
        told = {"versions": rows, "weight_bytes": listed.weight_bytes, "max_weight_bytes": limit}
        print(json.dumps(told, ensure_ascii=False))
        return
    print_columns(
        ("ranker", "version", "role", "share", "calls", "bytes", "source", "configured"),
        [
            (
                each["ranker"],
                each["version"],
                each["role"],
                f"{each['share']:.4g}",
                str(each["calls_in_flight"]),
                f"{each['weight_bytes']:,}",
                each["source"],
                "yes" if each["configured"] else "no",
            )
            for each in rows
        ],
    )
    print(f"\nweights: {listed.weight_bytes:,} bytes" + ("" if limit is None else f" of {limit:,}"))


def _load(args: argparse.Namespace, stub: Any) -> None:
    done = stub.LoadRanker(pb.LoadRankerRequest(name=args.name, source=_source(args)))
    print(f"{args.name}: loaded version {done.version}")


def _unload(args: argparse.Namespace, stub: Any) -> None:
    stub.UnloadRanker(pb.UnloadRankerRequest(name=args.name))
    print(f"{args.name}: unloaded")


def _swap(args: argparse.Namespace, stub: Any) -> None:
    done = stub.SwapRanker(pb.SwapRankerRequest(name=args.name, source=_source(args), trial=_trial(args)))
    print(f"{args.name}: version {done.version} gets all calls{_compared(done)}")


def _canary(args: argparse.Namespace, stub: Any) -> None:
    if args.stop:
        if args.source is not None or args.share is not None or args.recorded is not None:
            raise CommandError("rankers canary: --stop takes neither a source nor a share nor queries")
        stub.StopCanary(pb.StopCanaryRequest(name=args.name))
        print(f"{args.name}: the canary is stopped")
        return
    if args.share is None:
        raise CommandError("rankers canary: give --share or --stop")
    asked = pb.StartCanaryRequest(name=args.name, source=_source(args), share=args.share, trial=_trial(args))
    done = stub.StartCanary(asked)
    print(f"{args.name}: version {done.version} gets {args.share:.4g} of the calls{_compared(done)}")


def _compared(done: pb.SwapRankerResponse | pb.StartCanaryResponse) -> str:
    if not done.HasField("comparison"):
        return ""
    found = done.comparison
    return (
        f"; on {found.queries} recorded queries tau {found.tau:.4f}, latency ratio {found.latency_ratio:.3f}"
    )


def _source(args: argparse.Namespace) -> pb.RankerSource | None:
    if args.source is None:
        if args.set:
            raise CommandError("--set: needs a source")
        return None
    return pb.RankerSource(
        source=args.source, settings=dict(pair("--set KEY=VALUE", each) for each in args.set)
    )


def _trial(args: argparse.Namespace) -> pb.Trial | None:
    """Read the recorded queries.

    Raises: CommandError naming the file and the line.
    """
    if args.recorded is None:
        if args.min_tau is not None or args.max_latency_ratio is not None:
            raise CommandError("--min-tau and --max-latency-ratio: need --recorded")
        return None
    with told_in_a_line(InputError, file=args.recorded):
        queries = [_recorded(where, line) for where, line in numbered_lines(args.recorded)]
    if not queries:
        raise CommandError(f"{args.recorded}: contains no queries")
    return pb.Trial(queries=queries, min_tau=args.min_tau, max_latency_ratio=args.max_latency_ratio)


def _recorded(where: str, line: str) -> pb.RecordedQuery:
    """Read a line of a load test's workload: a document is a text, or an object with a text."""
    fields = json_object(where, line)
    query, documents = named_string(where, fields, ("query",)), fields.get("documents")
    if not isinstance(documents, list):
        raise InputError(f"{where}: 'documents' must be a list")
    texts = []
    for number, each in enumerate(documents):
        given = {"text": each} if isinstance(each, str) else each
        if not isinstance(given, dict):
            raise InputError(f"{where}: documents[{number}]: must be a string or an object with 'text'")
        texts.append(named_string(f"{where}: documents[{number}]", given, ("text",)))
    return pb.RecordedQuery(query=query, documents=texts)
