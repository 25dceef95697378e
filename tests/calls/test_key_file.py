"""The file of API keys: its format, the errors of mistakes, and adding and removing keys."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farrank_calls.key_file import END_MARK, MAX_KEYS, KeyConfig, add_key, read_keys, revoke_key
from farrank_settings.errors import ConfigError

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_new_key_has_256_bits_and_the_file_its_digest_alone(file: Path) -> None:
    key = add_key(file, "team-a", {"rankers": ["a", 'b"c'], "indexes": [], "calls_per_s": 2.5})
    another = add_key(file, "b", {"expires": "2027-01-31", "tokens_per_s": None})
    assert key != another
    assert key.startswith("farrank_")
    assert len(key.removeprefix("farrank_")) == 43  # 256 bits, 6 per character
    text = file.read_text()
    assert key not in text
    assert another not in text
    assert read_keys(file) == {
        "team-a": KeyConfig(hashlib.sha256(key.encode()).hexdigest(), ("a", 'b"c'), (), 2.5),
        "b": KeyConfig(hashlib.sha256(another.encode()).hexdigest(), expires="2027-01-31"),
    }
    assert read_keys(file)["b"].expires_at_s == 1_801_353_600


def test_keys_that_are_made_at_once_are_all_kept(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add_key(file, f"k{n}", {}), range(24)))
    assert set(read_keys(file)) == {f"k{n}" for n in range(24)}
    assert os.listdir(file.parent) == [file.name]


def test_a_revoked_key_is_gone_and_comments_stay(file: Path) -> None:
    for name in ("a", "b", "c"):
        add_key(file, name, {"rankers": ["x"]})
    assert file.read_text().endswith(f"\n\n{END_MARK}\n")
    file.write_text(file.read_text().replace("[keys.c]", "# of the nightly job\n[ keys.c ] # c"))
    file.chmod(0o640)
    before = read_keys(file)
    revoke_key(file, "b")
    assert read_keys(file) == {name: before[name] for name in ("a", "c")}
    revoke_key(file, "c")
    assert set(read_keys(file)) == {"a"}
    assert file.stat().st_mode & 0o777 == 0o640
    with pytest.raises(ConfigError, match=r"keys\.b: there is no such key"):
        revoke_key(file, "b")
    # The server would refuse the file, and the key would stay valid.
    with pytest.raises(ConfigError, match=r"keys\.a: is the only key.*add another first"):
        revoke_key(file, "a")
    assert set(read_keys(file)) == {"a"}
    assert file.read_text().count(END_MARK) == 1


def test_a_key_that_cannot_be_removed_is_left_to_the_user(file: Path) -> None:
    file.write_text(f'[keys]\na = {{sha256 = "{DIGEST}"}}\n{END_MARK}')
    add_key(file, "b", {})
    with pytest.raises(ConfigError, match=r"edit .* by hand"):
        revoke_key(file, "a")
    assert set(read_keys(file)) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[keys.a]\n", r"keys\.a\.sha256: a value is required"),
        ("[keys.a]\nsha256 = 'farrank_secret'\n", r"keys\.a\.sha256: must be 64 hexadecimal digits"),
        (f"[keys.a]\nsha256 = '{DIGEST}'\nranker = 'x'\n", r"keys\.a\.ranker: .*did you mean .*rankers"),
        (f"[keys.a]\nsha256 = '{DIGEST}'\ncalls_per_s = 0\n", r"keys\.a\.calls_per_s: 0.* above 0"),
        (f"[keys.a]\nsha256 = '{DIGEST}'\nexpires = 'soon'\n", r"keys\.a\.expires: 'soon'.* 2027-01-31"),
        (f"[keys.a]\nsha256 = '{DIGEST}'\nrankers = [1]\n", r"keys\.a\.rankers: .*list of texts"),
        (f"[keys.'a b']\nsha256 = '{DIGEST}'\n", "keys.'a b': a name is 1 to 64 letters"),
        (f"[keys.farrank_x]\nsha256 = '{DIGEST}'\n", "does not begin with farrank_"),
        (
            f"[keys.a]\nsha256 = '{DIGEST}'\n[keys.b]\nsha256 = '{DIGEST.upper()}'\n",
            r"keys\.b\.sha256: keys\.a has the same digest",
        ),
        (
            "".join(f"[keys.k{n}]\nsha256 = '{n:064x}'\n" for n in range(MAX_KEYS + 1)),
            f"at most {MAX_KEYS}",
        ),
        ("[keys", "keys.toml: "),
        ("# none yet\n", "keys: is empty; add a key"),
        ("[keys]\n", "keys: is empty; add a key"),
    ],
)
def test_a_mistake_is_named_with_its_file_and_without_what_may_be_a_key(
    file: Path, text: str, message: str
) -> None:
    file.write_text(f"{text}\n{END_MARK}\n")
    with pytest.raises(ConfigError, match=message) as told:
        read_keys(file)
    assert all(str(file) in problem for problem in told.value.problems)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("suffix", [".toml", ".yaml"])
def test_a_file_that_is_cut_off_anywhere_is_refused(file: Path, suffix: str) -> None:
    add_key(file, "a", {"rankers": ["x"], "expires": "2027-01-31"})
    add_key(file, "b", {"indexes": ["y"], "calls_per_s": 1.5})
    file = file.with_suffix(suffix)
    whole = file.read_text() if suffix == ".toml" else f"keys:\n  a: {{sha256: {DIGEST}}}\n{END_MARK}\n"
    assert read_keys(file, whole)
    for length in range(len(whole.rstrip())):
        with pytest.raises(ConfigError, match=r"does not end with .*'# end of keys'.*add this line"):
            read_keys(file, whole[:length])


@pytest.mark.parametrize("text", ["", f'[keys.a]\nsha256 = "{DIGEST}"\n'])
def test_a_file_without_its_last_line_is_neither_read_nor_changed(file: Path, text: str) -> None:
    file.write_text(text)
    for attempt in (
        lambda: read_keys(file),
        lambda: add_key(file, "b", {}),
        lambda: revoke_key(file, "a"),
    ):
        with pytest.raises(ConfigError, match=r"keys\.toml: does not end with the line"):
            attempt()
    assert file.read_text() == text


def test_nothing_is_written_that_a_server_would_refuse(file: Path) -> None:
    add_key(file, "a", {})
    before = file.read_text()
    for name, rights, message in (
        ("a", {}, r"keys\.a: exists already"),
        ("b.c", {}, "a name is"),
        ("b", {"calls_per_s": -1.0}, r"keys\.b\.calls_per_s"),
    ):
        with pytest.raises(ConfigError, match=message):
            add_key(file, name, rights)
    assert file.read_text() == before
    with pytest.raises(ConfigError, match=r"end in \.toml"):
        add_key(file.with_suffix(".yaml"), "a", {})


def test_a_missing_file_is_reported(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys\.toml: No such file"):
        read_keys(file)
