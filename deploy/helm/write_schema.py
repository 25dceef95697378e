"""Write the schema of the chart's values: `python deploy/helm/write_schema.py`.

By hand stands what the chart adds; what the server's configuration takes is the server's own word.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from farrank_server.config.json_schema import json_schema
from farrank_server.config.schema import RankerConfig, ServerConfig

FOLDER = Path(__file__).parent
WRITTEN = FOLDER / "farrank" / "values.schema.json"


def schema() -> dict[str, Any]:
    """Put both together."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "values.schema.yaml").read_text(encoding="utf-8"))
    ranker = json_schema(RankerConfig)
    # An entry of a list has its name inside.
    ranker["properties"] = {"name": {"type": "string", "minLength": 1}, **ranker["properties"]}
    found["definitions"] |= {"ranker": ranker | {"required": ["name"]}, "config": json_schema(ServerConfig)}
    return found


def text() -> str:
    """What the file holds; the same every time."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
    print(WRITTEN)
