"""Read the documents to rerank from files or from JSON lines."""

from collections.abc import Sequence
from pathlib import Path

from farrank_cli.exit_codes import CommandError
from farrank_client import Document
from farrank_trec import read_documents
from farrank_trec.errors import InputError


def read_files(paths: Sequence[Path]) -> list[Document]:
    """Read each file as one document, named by its path.

    Raises: CommandError naming the file that cannot be read or is not UTF-8.
    """
    return [Document(str(path), _text_of(path)) for path in paths]


def read_jsonl(source: str) -> list[Document]:
    """Read a document from each line of a file, or of stdin for `-`: the lines that `farrank index` takes.

    Raises: CommandError naming the file, the line and what is wrong with it.
    """
    try:
        return [Document(each.doc_id, each.text) for each in read_documents([source])]
    except InputError as error:
        raise CommandError(str(error)) from error


def _text_of(path: Path) -> str:
    try:
        # As bytes first: reading as text would turn line ends around, and offsets with them.
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path}: not UTF-8 (byte {error.start + 1})") from error
