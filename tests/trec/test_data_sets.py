"""Data sets of ir_datasets as sources, from files in its own folder; nothing is downloaded."""

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank_trec import read_run
from support.judged_queries import QRELS, QUERIES, TEXTS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ir-datasets.md"
NFCORPUS = "ir_datasets:beir/nfcorpus"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ir_datasets fills it, with a small collection in the form of NFCorpus."""
    home = tmp_path_factory.mktemp("ir-datasets")
    documents = [
        {"_id": doc_id, "title": doc_id.title(), "text": text, "metadata": {"url": "x"}}
        for doc_id, text in TEXTS.items()
    ]
    queries = [
        {"_id": query_id, "text": text, "metadata": {"url": "x"}} for query_id, text in QUERIES.items()
    ]
    judged = ["query-id\tcorpus-id\tscore"] + [
        f"{query_id}\t{doc_id}\t{grade}" for query_id, of in QRELS.items() for doc_id, grade in of.items()
    ]
    (home / "beir" / "nfcorpus").mkdir(parents=True)
    with zipfile.ZipFile(home / "beir" / "nfcorpus" / "source.zip", "w") as packed:
        packed.writestr("nfcorpus/corpus.jsonl", "".join(f"{json.dumps(each)}\n" for each in documents))
        packed.writestr("nfcorpus/queries.jsonl", "".join(f"{json.dumps(each)}\n" for each in queries))
        packed.writestr("nfcorpus/qrels/test.tsv", "".join(f"{line}\n" for line in judged))
    return home


Run = Callable[[str], str]


@pytest.fixture
def run(home: Path) -> Run:
    """Run code in a process of its own: ir_datasets finds its folder when it is imported."""

    def run_code(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PREPARED + code],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env={**os.environ, "IR_DATASETS_HOME": str(home)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_code


PREPARED = """
import json
from pathlib import Path
from ir_datasets.util import download
from farrank_trec import read_documents, read_qrels, read_queries, read_run
from farrank_trec.errors import InputError

asked = []

def request(self):
    asked.append(self.url)
    return iter([b"not a data set"])

download.RequestsDownload.__iter__ = request

def error_of(read, source, *more):
    try:
        print("read", list(read(source, *more))[:1])
    except InputError as error:
        print(error)
"""


def test_every_reader_takes_its_part(run: Run) -> None:
    told = run(f"""
documents = list(read_documents(["{NFCORPUS}"]))
print(json.dumps([
    {{each.doc_id: each.text for each in documents}},
    [each.where for each in documents],
    [each.doc_id for each in read_documents(["{NFCORPUS}"], wanted={{"salt"}})],
    read_queries(Path("{NFCORPUS}/test")),
    read_queries(Path("{NFCORPUS}/test"), "url"),
    read_qrels(Path("{NFCORPUS}/test")),
    asked,
]))""")
    texts, places, wanted, queries, field, judged, downloads = json.loads(told)
    assert texts == {doc_id: f"{doc_id.title()}\n\n{text}" for doc_id, text in TEXTS.items()}
    assert places == [f"{NFCORPUS}:{number}" for number in range(1, 6)]
    assert wanted == ["salt"]
    assert queries == QUERIES
    assert field == dict.fromkeys(QUERIES, "x")
    assert judged == QRELS
    assert downloads == []


def test_training_reads_single_documents_of_it(run: Run) -> None:
    told = run(f"""
from farrank_training.checksums import checksums
from farrank_training.text_store import TextStore
store = TextStore(["{NFCORPUS}"], {{"rivers", "salt"}})
print(json.dumps([store.text("salt"), len(store), checksums(["{NFCORPUS}"])]))""")
    assert json.loads(told) == [f"Salt\n\n{TEXTS['salt']}", 2, {}]


def test_nothing_is_downloaded_unasked(run: Run) -> None:
    told = run("""
error_of(lambda source: read_documents([source]), "ir_datasets:beir/scifact")
error_of(read_qrels, Path("ir_datasets:beir/scifact/test"))
error_of(read_queries, Path("ir_datasets:vaswani"))
print(asked)
error_of(lambda source: read_documents([source]), "ir_datasets+download:beir/scifact")
print(len(asked) > 0)
error_of(lambda source: read_documents([source]), "ir_datasets:beir/scifact")
""").splitlines()
    absent = "ir_datasets:beir/scifact: its docs are not on this machine; "
    assert told[0] == told[6] == f"{absent}ir_datasets+download:beir/scifact downloads them"
    assert told[1].startswith("ir_datasets:beir/scifact/test: its qrels are not on this machine; ")
    assert told[2].startswith("ir_datasets:vaswani: its queries are not on this machine; ")
    assert told[3] == "[]"
    # An answer with another digest is no data set.
    assert told[4].startswith("ir_datasets+download:beir/scifact: its docs cannot be read: ")
    assert told[5] == "True"


def test_errors_name_the_source(run: Run) -> None:
    told = run(f"""
error_of(read_run, Path("ir_datasets:nowhere/at-all"))
error_of(read_run, Path("{NFCORPUS}/test"))
error_of(read_queries, Path("{NFCORPUS}/test"), "narrative")
error_of(lambda source: read_documents([source]), "ir_datasets:disks45/nocr")
""").splitlines()
    assert told[0] == "ir_datasets:nowhere/at-all: ir_datasets has no data set 'nowhere/at-all'"
    assert told[1] == f"{NFCORPUS}/test: has no scoreddocs, only docs, queries, qrels"
    assert told[2].startswith(f"{NFCORPUS}/test:1: 'narrative' is missing (the query has query_id, text")
    # Its data is bought from NIST.
    assert told[3].startswith("ir_datasets:disks45/nocr: its docs cannot be read: ")
    assert "disks45" in told[3]


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['ir_datasets'] = None\n"
        "from farrank_trec import read_documents; list(read_documents(['ir_datasets:vaswani']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ir_datasets:vaswani: needs pip install 'farrank[ir-datasets]'" in done.stderr


def test_the_documented_session(tmp_path: Path, home: Path) -> None:
    (session,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    said = []
    for command in session.splitlines():
        words = [sys.executable, "-m", "farrank_cli", *shlex.split(command)[1:]]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            env={**os.environ, "IR_DATASETS_HOME": str(home)},
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "5 documents" in said[0]
    assert re.search(r"maxp\s+\| [*]*[01]\.\d+", said[2]), said[2]
    assert list(read_run(tmp_path / "maxp.trec")) == list(QRELS)
