"""The description of data that was made."""

import hashlib
from pathlib import Path

from farrank_rankers.tokenizer import TextTokenizer
from farrank_training.data_sets.made_data import record


def test_every_input_has_its_checksum(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """Two files of one name are listed by their paths. Data from a pipe cannot be read again."""
    files = [tmp_path / "one" / "part.jsonl", tmp_path / "two" / "part.jsonl", tmp_path / "queries.tsv"]
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(path))
    said = record("window", {}, ("embedded", tokenizer), [*files, Path("-")], {}, {})
    names = [str(files[0]), str(files[1]), "queries.tsv"]
    assert said["inputs"] == {
        name: hashlib.sha256(str(path).encode()).hexdigest() for name, path in zip(names, files, strict=True)
    }
