"""The names that an application may rely on. A change here changes the contract."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import farrank
import farrank_client
from farrank.v1 import rerank_pb2
from farrank_client import errors

HEAVY = ("grpc", "google.protobuf", "farrank_client")


@pytest.mark.parametrize("package", [farrank, farrank_client])
def test_public_names(package: ModuleType) -> None:
    assert sorted(package.__all__) == [
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
    assert {*package.__all__} <= {*dir(package)}
    assert all(getattr(package, name) is getattr(farrank_client, name) for name in package.__all__)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_client_is_imported_with_the_first_name() -> None:
    loaded = f"print(*(name for name in {HEAVY} if name in sys.modules))"
    assert run(f"import sys, farrank; {loaded}") == ""
    assert run(f"import sys, farrank.v1.rerank_pb2; {loaded}") == "google.protobuf"
    assert run(f"import sys; from farrank import Client; {loaded}") == " ".join(HEAVY)
    assert run("from farrank import *; print(Client.__module__)") == "farrank_client.client"


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Cliemt' from 'farrank'"):
        exec("from farrank import Cliemt")
    assert not hasattr(farrank, "calls")


def test_type_checkers_know_the_names(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(
        'from farrank import Client\n\nreveal_type(Client("").rerank("", []).results)\n'
    )
    (tmp_path / "wrong.py").write_text("from farrank import Cliemt\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "right.py", "wrong.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )
    assert 'Revealed type is "tuple[farrank_client.ranking.Result, ...]"' in done.stdout
    assert 'Module "farrank" has no attribute "Cliemt"' in done.stdout


def test_both_clients_have_the_same_methods() -> None:
    def names(client: type) -> set[str]:
        return {name for name in vars(client) if not name.startswith("_")}

    assert names(farrank_client.Client) == names(farrank_client.AsyncClient)
    assert names(farrank_client.Client) == {
        "close",
        "is_healthy",
        "rank_all",
        "rankers",
        "rerank",
        "search_and_rerank",
        "wait_until_healthy",
    }


def test_every_error_is_drawn_in_the_tree() -> None:
    tree = errors.__doc__ or ""
    assert all(kind.__name__ in tree for kind in errors.FarrankError.__subclasses__())


def test_the_contract_has_packages_for_go_and_java() -> None:
    # Their plugins of protoc refuse a file without them, or put its classes where no package can import them.
    options = rerank_pb2.DESCRIPTOR.GetOptions()
    assert (options.go_package, options.java_package) == ("farrank/v1;farrankv1", "farrank.v1")
    assert options.java_multiple_files
