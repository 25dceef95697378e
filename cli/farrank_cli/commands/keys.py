"""`farrank keys`: make, list and revoke the API keys that `farrank serve --keys FILE` requires of callers."""

import argparse
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from farrank_calls.key_file import KeyConfig, add_key, read_keys, revoke_key
from farrank_cli.exit_codes import DONE, told_in_a_line
from farrank_cli.flags import add_commands, flag, listed, positive
from farrank_cli.terminal import print_columns
from farrank_settings.errors import ConfigError

_ACTIONS = {
    "new": "make a key, store its digest in the file, and print it once",
    "list": "list the keys of the file and their rights",
    "revoke": "remove a key from the file",
}
_HEADS = ("key", "rankers", "indexes", "calls/s", "tokens/s", "burst", "weight", "expires", "SHA-256")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their flags."""
    actions = add_commands(parser, _ACTIONS, title="actions", dest="action", metavar="ACTION", required=True)
    for action in actions.values():
        flag(action, "--file FILE", "the file of keys, .toml", Path, required=True)
    for name in ("new", "revoke"):
        actions[name].add_argument("name", metavar="NAME", help="the key's name in metrics and messages")
    flag(actions["list"], "--json", "one JSON object instead of a table")

    add = partial(flag, actions["new"])
    add("--rankers NAME,…", "rankers that the key may use, its default first (all)", listed(str))
    add("--indexes NAME,…", "indexes that the key may use (all)", listed(str))
    add("--calls-per-s R", "limit of calls per second on each server (none)", positive)
    add("--tokens-per-s R", "limit of tokens per second on each server (none)", positive)
    add("--burst-s S", "seconds of the limits that may be used at once after a pause", positive, 1.0)
    add("--weight W", "its share of a busy server, relative to other callers", positive, 1.0)
    add("--expires WHEN", "a date, a time, or days from now, such as 90d (never)", _when)


def run(args: argparse.Namespace) -> int:
    """Make, revoke or list keys.

    Raises: CommandError, one line that names the field, if the file or a right is wrong.
    """
    with told_in_a_line(ConfigError, file=args.file):
        if args.action == "new":
            _make(args)
        elif args.action == "revoke":
            revoke_key(args.file, args.name)
            print(f"{args.name} is revoked: servers notice within seconds, or at farrank reload")
        else:
            _list(args)
    return DONE


def _make(args: argparse.Namespace) -> None:
    names = ("rankers", "indexes", "calls_per_s", "tokens_per_s", "expires")
    rights = {name: getattr(args, name) for name in names}
    if args.burst_s != 1:
        rights["burst_s"] = args.burst_s
    if args.weight != 1:
        rights["weight"] = args.weight
    key = add_key(args.file, args.name, rights)
    # Only the key goes to standard output, so that it can be piped on without being seen.
    print(f"this is key {args.name}; it is not stored and cannot be shown again:", file=sys.stderr)
    print(key)


def _list(args: argparse.Namespace) -> None:
    keys = read_keys(args.file)
    if args.json:
        print(json.dumps({name: _told(key) for name, key in keys.items()}, ensure_ascii=False))
        return
    print_columns(_HEADS, [(name, *_row(key)) for name, key in keys.items()])


def _told(key: KeyConfig) -> dict[str, object]:
    names = ("rankers", "indexes", "calls_per_s", "tokens_per_s", "burst_s", "weight", "expires", "sha256")
    return {name: getattr(key, name) for name in names}


def _row(key: KeyConfig) -> tuple[str, ...]:
    expired = key.expires_at_s is not None and key.expires_at_s <= datetime.now(UTC).timestamp()
    return (
        *("all" if names is None else ", ".join(names) or "none" for names in (key.rankers, key.indexes)),
        *("any" if rate is None else f"{rate:g}" for rate in (key.calls_per_s, key.tokens_per_s)),
        f"{key.burst_s:g} s",
        f"{key.weight:g}",
        f"{key.expires or 'never'}{', has expired' if expired else ''}",
        f"{key.sha256[:12]}…",
    )


def _when(text: str) -> str:
    if days := re.fullmatch(r"(\d{1,5})d", text):
        at = datetime.now(UTC) + timedelta(days=int(days[1]))
        return at.isoformat(timespec="seconds").replace("+00:00", "Z")
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a date or time such as 2027-01-31 or 2027-01-31T12:00:00Z, nor days such as 90d"
        ) from None
    return text
