"""The file of API keys with their digests and rights: reads, checks and changes it.

A key is `farrank_` and 256 random bits in URL-safe base64; scanners for secrets recognize the prefix. The
file holds the key's SHA-256. A slow hash would protect passwords, which can be guessed. A key among 2^256
cannot be guessed even with a fast hash, and every call has to compute the hash.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import string
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from farrank_settings import sources
from farrank_settings.checked import CheckedConfig, above_0, between, must
from farrank_settings.errors import ConfigError

PREFIX = "farrank_"
KEY_BYTES = 32

# Limit on the number of keys, since each name is a label of metrics.
MAX_KEYS = 1000

# The last line of a file. A file that was cut off inside a table would still be valid, and its last key would
# have lost its limits.
END_MARK = "# end of keys"

# Outside these bounds a key would get practically nothing, or everything.
MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0
_NAME = re.compile(rf"(?!{PREFIX})[A-Za-z0-9_-]{{1,64}}")
_NAMES = f"a name is 1 to 64 letters, digits, _ and -, and does not begin with {PREFIX}"


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class KeyConfig(CheckedConfig):
    """One key: its digest, and its rights. None allows everything.

    `rankers` and `indexes` are names; the first of `rankers` is the key's default if the server's default is
    not among them. The rates apply to one server; after a pause, the amount of `burst_s` seconds may be used
    at once. `expires` is a date or a time, in UTC if it has no offset. A full server is shared in proportion
    to `weight`.
    """

    sha256: str
    rankers: tuple[str, ...] | None = None
    indexes: tuple[str, ...] | None = None
    calls_per_s: float | None = above_0(None)
    tokens_per_s: float | None = above_0(None)
    burst_s: float = above_0(1.0)
    weight: float = between(MIN_WEIGHT, MAX_WEIGHT, 1.0)
    expires: str | None = must(None, _is_time, "a date or a time, such as 2027-01-31 or 2027-01-31T12:00:00Z")

    def __post_init__(self) -> None:
        """Check the fields."""
        if len(self.sha256) != 64 or not set(self.sha256) <= set(string.hexdigits):
            # The message leaves out the value, which may be the key itself.
            raise ConfigError(
                "sha256: must be 64 hexadecimal digits, a key's SHA-256; farrank keys new writes them"
            )
        CheckedConfig.__post_init__(self)

    @property
    def digest(self) -> bytes:
        """The key's SHA-256."""
        return bytes.fromhex(self.sha256)

    @property
    def expires_at_s(self) -> float | None:
        """The time at which the key expires, in Unix time; None if it does not."""
        if self.expires is None:
            return None
        at = datetime.fromisoformat(self.expires)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class KeyFile(CheckedConfig):
    """The whole file: keys by name."""

    keys: Mapping[str, KeyConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the rules that concern all keys together."""
        problems = [f"keys.{name[:100]!r}: {_NAMES}" for name in self.keys if not _NAME.fullmatch(name)]
        if len(self.keys) > MAX_KEYS:
            problems.append(f"keys: has {len(self.keys)} entries; at most {MAX_KEYS} are allowed")
        named: dict[bytes, str] = {}
        for name, key in self.keys.items():
            if (other := named.setdefault(key.digest, name)) != name:
                problems.append(f"keys.{name}.sha256: keys.{other} has the same digest")
        if problems:
            raise ConfigError(*problems)


def read_keys(path: Path, text: str | None = None) -> Mapping[str, KeyConfig]:
    """Read and check a file, or check `text`, which the file is about to hold.

    Raises: ConfigError with every problem: the field, what is wrong and the file; also if the file holds no
    key, or does not end with `END_MARK`.
    """
    try:
        text = sources.text_of(path) if text is None else text
        if text.rstrip().rpartition("\n")[2].strip() != END_MARK:
            raise ConfigError(
                f"{path}: does not end with the line {END_MARK!r}, so a part of it may be missing; if it is "
                "complete, add this line at its end"
            )
        keys = sources.build(KeyFile, sources.from_file(path, text)).keys
        if not keys:
            raise ConfigError("keys: is empty; add a key with farrank keys new")
        return keys
    except ConfigError as error:
        # A problem of several keys does not name the file yet.
        named = (each if str(path) in each else f"{each} ({path})" for each in error.problems)
        raise ConfigError(*named) from None


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key; any text that a caller sends as one is valid here."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def add_key(path: Path, name: str, rights: Mapping[str, object]) -> str:
    """Create a key, add it to a file (which is created if needed), and return it. It is stored nowhere else.

    `rights` are fields of `KeyConfig` except the digest; None leaves a field out.
    Raises: ConfigError if the file or the new entry is invalid; OSError if the file cannot be written.
    """
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    lines = [f"[keys.{name}]", f'sha256 = "{digest_of(key).hex()}"']
    lines += [f"{right} = {_toml(value)}" for right, value in rights.items() if value is not None]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"keys.{name[:100]!r}: {_NAMES}")
    with _changing(path) as text:
        if path.exists() and name in read_keys(path):
            raise ConfigError(f"keys.{name}: exists already ({path})")
        text[0] = f"{text[0].rstrip() or _HEAD}\n\n" + "\n".join(lines)
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key from a file; comments and all other keys stay.

    Raises: ConfigError if there is no such key, or it is not a table that can be cut out; OSError.
    """
    with _changing(path) as text:
        before = read_keys(path)
        if name not in before:
            raise ConfigError(f"keys.{name[:100]}: there is no such key ({path})")
        if len(before) == 1:
            raise ConfigError(
                f"keys.{name}: is the only key, and a server refuses a file without keys; add another first "
                f"({path})"
            )
        kept, cutting = [], False
        for line in text[0].splitlines(keepends=True):
            if line.lstrip().startswith("["):
                cutting = line.split("#")[0].strip().replace(" ", "") == f"[keys.{name}]"
            if not cutting:
                kept.append(line)
        text[0] = "".join(kept)
        try:
            after = read_keys(path, text[0] + END_MARK)
        except ConfigError:
            after = before
        if after != {each: key for each, key in before.items() if each != name}:
            raise ConfigError(f"keys.{name}: is not written as a table [keys.{name}]; edit {path} by hand")


_HEAD = """\
# SHA-256 digests of the API keys; farrank keys adds and revokes them. A server with listen.keys
# reads this file at its start, when it changes and at SIGHUP. It refuses the file without its last line."""


def _toml(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, (int, float)):
        return repr(value)
    escaped = "".join(
        f"\\u{ord(each):04x}" if each in '"\\' or ord(each) < 32 or ord(each) == 127 else each
        for each in str(value)
    )
    return f'"{escaped}"'


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[list[str]]:
    """Yield the text of a file in a list, without its end mark, and write the changed text back.

    The new text is checked before it is written, and the file is replaced in one step. A lock on the folder
    keeps out other changes meanwhile.
    """
    if path.suffix != ".toml":
        raise ConfigError(f"{path}: farrank keys writes files that end in .toml")
    path = path.resolve()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        there = path.stat() if path.exists() else None
        text = [path.read_text(encoding="utf-8").rstrip().removesuffix(END_MARK) if there else ""]
        yield text
        text[0] = f"{text[0].rstrip()}\n\n{END_MARK}\n"
        read_keys(path, text[0])
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as new:
            try:
                new.write(text[0])
                new.flush()
                os.fsync(new.fileno())
                os.fchmod(new.fileno(), there.st_mode & 0o777 if there else 0o644)
                os.replace(new.name, path)
            except BaseException:
                os.unlink(new.name)
                raise
    finally:
        os.close(folder)
