"""The wire contracts, from the comments and definitions of `rerank.proto` and `admin.proto`."""

import re
from pathlib import Path

PROTOS = Path(__file__).parents[2] / "proto" / "farrank" / "v1"

_DEFINITION = re.compile(
    r"(?P<comment>(?:^//.*\n)*)"
    r"^(?P<code>(?:service|message|enum) (?P<name>\w+) \{(?:\n(?:.*\n)*?)?\}\n)",
    re.MULTILINE,
)


def markdown(file: str = "rerank.proto") -> str:
    """A section for each service, message and enum of a file: its comment, then its definition."""
    lines: list[str] = []
    for found in _DEFINITION.finditer((PROTOS / file).read_text(encoding="utf-8")):
        comment = re.sub(r"^// ?", "", found["comment"], flags=re.MULTILINE)
        # A list of codes is set in columns.
        comment = re.sub(r"((?:^  .*\n)+)", r"\n```text\n\1```\n\n", comment, flags=re.MULTILINE)
        lines += [f"## {found['name']}", "", comment, "```proto", found["code"].rstrip(), "```", ""]
    return "\n".join(lines)
