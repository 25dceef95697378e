"""Write the schema of the chart's values: `python deploy/helm/write_schema.py`.

The chart's own values are described by hand in values.schema.yaml. The schema of the server's configuration
is generated from the server's code.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from farrank_server.config.schema import RankerConfig
from farrank_server.config.server_config import config_schema
from farrank_settings.json_schema import json_schema

FOLDER = Path(__file__).parent
WRITTEN = FOLDER / "farrank" / "values.schema.json"


def schema() -> dict[str, Any]:
    """Return the chart's schema, with the server's configuration among its definitions."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "values.schema.yaml").read_text(encoding="utf-8"))
    ranker = json_schema(RankerConfig)
    # The chart has a list of rankers, so each entry has its name inside.
    ranker["properties"] = {"name": {"type": "string", "minLength": 1}, **ranker["properties"]}
    found["definitions"] |= {"ranker": ranker | {"required": ["name"]}, "config": config_schema()}
    return found


def text() -> str:
    """Return the content of the file. It is the same every time."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
    print(WRITTEN)
