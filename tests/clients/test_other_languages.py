"""Go and Java stubs are generated from the contract and compiled, where their tools are installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.documentation import ROOT, blocks

# Where Debian's packages install the sources and classes of Go's and Java's protobuf.
GO_SOURCES = Path("/usr/share/gocode")
JAVA_CLASSES = Path("/usr/share/java/protobuf.jar")


def needed(*tools: str, library: Path) -> None:
    missing = [each for each in tools if shutil.which(each) is None]
    missing += [] if library.exists() else [str(library)]
    if missing:
        pytest.skip(f"NO STUB WAS COMPILED: absent here: {', '.join(missing)}")


def run(command: str, folder: Path, **variables: str) -> None:
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def written() -> list[str]:
    """Return the commands of the page for Go and for Java."""
    page = (ROOT / "docs" / "how-to" / "http-clients.md").read_text(encoding="utf-8")
    _, _, after = page.partition("\n## Go and Java\n")
    return [each.text for each in blocks(after.partition("\n## ")[0]) if each.language == "bash"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds `proto`, as the page's lines expect."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "proto").symlink_to(ROOT / "proto")
    return tmp_path / "src"


@pytest.mark.slow
def test_the_pages_line_makes_go_stubs_that_compile(folder: Path) -> None:
    tools = ("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    needed(*tools, library=GO_SOURCES / "src" / "google.golang.org" / "grpc")
    run(written()[0], folder)
    package = folder / "example.com" / "search" / "farrankv1"
    assert {path.name for path in package.iterdir()} == {"rerank.pb.go", "rerank_grpc.pb.go"}
    # Without a module, Go reads its sources from these folders and fetches nothing.
    go = {
        "GO111MODULE": "off",
        "GOPATH": f"{folder.parent}:{GO_SOURCES}",
        "GOFLAGS": "",
        "GOCACHE": str(folder / "cache"),
    }
    caller = folder / "example.com" / "search" / "main.go"
    caller.write_text(
        'package main\n\nimport "example.com/search/farrankv1"\n\n'
        "var client = farrankv1.NewRerankServiceClient\n\n"
        'func main() { println((&farrankv1.RerankRequest{Query: "rivers"}).GetQuery()) }\n'
    )
    run('go vet ./example.com/... && test "$(go run example.com/search 2>&1)" = rivers', folder, **go)


@pytest.mark.slow
def test_the_pages_line_makes_java_messages_that_compile(folder: Path) -> None:
    needed("java", "javac", "protoc", library=JAVA_CLASSES)
    (folder / "Caller.java").write_text(
        "import farrank.v1.RerankRequest;\n\n"
        "class Caller {\n"
        "    public static void main(String[] given) throws Exception {\n"
        '        byte[] sent = RerankRequest.newBuilder().setQuery("rivers").build().toByteArray();\n'
        "        System.out.print(RerankRequest.parseFrom(sent).getQuery());\n"
        "    }\n"
        "}\n"
    )
    run(written()[1], folder)
    classpath = f"{JAVA_CLASSES}:classes"
    run(f"javac -d classes -cp {JAVA_CLASSES} Caller.java farrank/v1/*.java", folder)
    run(f'test "$(java -cp {classpath} Caller)" = rivers', folder)
