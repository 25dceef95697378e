"""docs/how-to/local-first-stages.md: its configuration is valid, and it lists the existing options."""

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from farrank_first_stage.kinds import kind_named
from farrank_server.config.server_config import build_config
from farrank_settings import sources

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "local-first-stages.md").read_text(encoding="utf-8")
OPTIONS = {"bm25, rm3, doc2query": "rm3", "impact": "impact", "dense": "dense", "fusion": "fusion"}


def test_the_configuration_is_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "farrank.yaml").write_text(block)
    config = build_config(sources.from_file(tmp_path / "farrank.yaml"))
    kinds = {name: index.kind for name, index in config.first_stage.indexes.items()}
    table = PAGE.partition("| kind | ranks by |")[2].partition("\n\n")[0]
    assert sorted(set(kinds.values())) == sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def options_of(kind: Any) -> dict[str, Any]:
    """List the keys of a kind with their defaults; keys of a part are `part.key`."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for each in fields(kind):
        part = next((one for one in get_args(hints[each.name]) if is_dataclass(one)), None)
        if part is not None:
            found |= {f"{each.name}.{name}": default for name, default in options_of(part).items()}
        elif each.name != "kind":
            found[each.name] = "" if each.default is MISSING else each.default
    return found


@pytest.mark.parametrize("section", OPTIONS)
def test_every_option_is_listed_with_its_default(section: str) -> None:
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    listed: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]+`) \| ([^|]*) ?\|", text, re.MULTILINE):
        keys, values = re.findall(r"`([^`]+)`", names), [each.strip(" `") for each in defaults.split(", ")]
        listed |= dict(zip(keys, values * len(keys) if len(values) == 1 else values, strict=True))
    listed.pop("linear", None)
    wanted = options_of(kind_named(OPTIONS[section]).options)
    called = {"None": "none", "weights": "equal", "scores": "raw"}
    assert {name: value for name, value in listed.items() if name in wanted} == {
        name: called.get(name, called.get(str(default), str(default))) for name, default in wanted.items()
    }
