"""`farrank keys`: its output, its file, and its refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank_calls.key_file import digest_of, read_keys
from support.commands import Outcome

Farrank = Callable[..., Outcome]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_key_is_printed_once_and_alone(farrank: Farrank, file: Path) -> None:
    rights = ["--rankers=small,large", "--indexes=news", "--calls-per-s=5", "--tokens-per-s=2e4"]
    late = ["--weight=2.5", "--expires=2999-01-31"]
    made = farrank("keys", "new", "team-a", "--file", file, *rights, "--burst-s=10", *late)
    assert made.exit_code == 0
    key = made.out.strip()
    assert made.out == f"{key}\n"
    assert key not in made.err
    assert "cannot be shown again" in made.err
    kept = read_keys(file)["team-a"]
    assert kept.digest == digest_of(key)
    assert (kept.rankers, kept.indexes, kept.burst_s, kept.weight) == (("small", "large"), ("news",), 10, 2.5)

    assert farrank("keys", "new", "old", "--file", file, "--expires", "2001-01-01").exit_code == 0
    listed = farrank("keys", "list", "--file", file)
    assert key not in listed.out
    heads, team, old = listed.out.splitlines()
    assert heads.split()[:3] == ["key", "rankers", "indexes"]
    assert team.split() == [
        *("team-a", "small,", "large", "news", "5", "20000", "10", "s", "2.5", "2999-01-31"),
        f"{kept.sha256[:12]}…",
    ]
    assert "2001-01-01, has expired" in old
    told = json.loads(farrank("keys", "list", "--file", file, "--json").out)
    assert told["team-a"]["tokens_per_s"] == 20000
    assert told["old"]["rankers"] is None

    assert farrank("keys", "revoke", "team-a", "--file", file).exit_code == 0
    assert set(read_keys(file)) == {"old"}


def test_days_from_now_are_a_time(farrank: Farrank, file: Path) -> None:
    assert farrank("keys", "new", "a", "--file", file, "--expires", "90d").exit_code == 0
    expires = read_keys(file)["a"].expires
    assert expires is not None
    assert expires.endswith("Z")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "a b"), "keys.'a b': a name is"),
        (("new", "a", "--expires", "soon"), "'soon' is not a date"),
        (("new", "a", "--calls-per-s", "0"), "not above 0"),
        (("revoke", "a"), "keys.toml: No such file or directory"),
        (("list",), "keys.toml: No such file or directory"),
    ],
)
def test_problems_are_reported_in_one_line(
    farrank: Farrank, file: Path, arguments: tuple[str, ...], message: str
) -> None:
    told = farrank("keys", *arguments, "--file", file)
    assert told.exit_code == 2
    assert message in told.err
    assert not file.exists()
