"""The configuration as JSON Schema: it accepts what the server accepts, and refuses what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from farrank_first_stage.kinds import KINDS, kind_named
from farrank_server.config.schema import ServerConfig
from farrank_server.config.server_config import build_config, config_schema
from farrank_settings.errors import ConfigError
from farrank_settings.sources import from_file, to_yaml

ROOT = Path(__file__).parents[2]
SCHEMA = config_schema()


def problems(tree: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(tree)]


def read(tree: Any, folder: Path) -> ServerConfig:
    """Read the configuration with the server's own reader."""
    file = folder / "farrank.yaml"
    file.write_text(yaml.safe_dump(tree))
    return build_config(from_file(file))


def test_it_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_the_whole_configuration_of_a_server_fits() -> None:
    assert problems(yaml.safe_load(to_yaml(ServerConfig(), []))) == []


def test_the_examples_of_the_documents_fit() -> None:
    seen = 0
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
            tree = yaml.safe_load(block)
            if isinstance(tree, dict) and tree.keys() <= SCHEMA["properties"].keys():
                assert problems(tree) == [], page.name
                seen += 1
    assert seen >= 3


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_index_has_its_own_options(name: str) -> None:
    """Other options are refused: `rrf_k` belongs to fusion, `k3` to no kind."""
    needed = {
        "path": "indexes/docs",
        "encoder": "minilm",
        "of": ["a", "b"],
        "hosts": ["https://search.example:9200"],
        "index": "web",
        "text_field": "body",
    }
    options = kind_named(name).options.__dataclass_fields__
    index = {"kind": name} | {key: value for key, value in needed.items() if key in options}
    assert problems({"first_stage": {"indexes": {"docs": index}}}) == []
    assert problems({"first_stage": {"indexes": {"docs": index | {"k3": 1}}}}) != []


WRONG: dict[str, Any] = {
    "an unknown key": {"limits": {"max_documnts": 3}},
    "a section that is a value": {"limits": 3},
    "a text for a number": {"limits": {"max_documents": "many"}},
    "a fraction of a document": {"limits": {"max_documents": 1.5}},
    "a truth for a number": {"limits": {"max_documents": True}},
    "below the least": {"limits": {"max_documents": 0}},
    "not above 0": {"limits": {"default_timeout_s": 0}},
    "beyond the most": {"listen": {"port": 70000}},
    "no name for a device": {"device": {"name": 3}},
    "a precision that there is not": {"rankers": {"mine": {"precision": "fp12"}}},
    "no certificate": {"listen": {"tls": {"private_key": "tls.key"}}},
    "a list that is a number": {"listen": {"http": {"cors_origins": 3}}},
    "an option of another kind": {"first_stage": {"indexes": {"docs": {"path": "x", "rrf_k": 3}}}},
}


@pytest.mark.parametrize("tree", WRONG.values(), ids=WRONG)
def test_what_the_server_refuses_is_refused(tree: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read(tree, tmp_path)
    assert problems(tree) != []


RIGHT: dict[str, Any] = {
    "nothing": {},
    "a whole number for a number": {"limits": {"default_timeout_s": 3}},
    "none": {"device": {"name": None}, "listen": {"tls": None, "metrics_port": None}},
    "an export's precision": {"rankers": {"mine": {"source": "x", "precision": "int8"}}},
    "an index without a kind": {
        "first_stage": {"indexes": {"docs": {"path": "x", "rm3": {"feedback_terms": 5}}}}
    },
    "weights": {
        "first_stage": {
            "indexes": {"both": {"kind": "fusion", "of": ["a", "b"], "method": "linear", "weights": [1, 0.5]}}
        }
    },
}


@pytest.mark.parametrize("tree", RIGHT.values(), ids=RIGHT)
def test_what_the_server_takes_fits(tree: Any, tmp_path: Path) -> None:
    read(tree, tmp_path)
    assert problems(tree) == []
