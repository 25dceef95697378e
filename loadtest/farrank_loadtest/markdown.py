"""Tables in Markdown."""

from collections.abc import Sequence


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, aligned: bool = True) -> str:
    """Write rows under their heads. Aligned columns, as wide as their widest cells, suit a terminal."""
    widths = [max(map(len, column)) if aligned else 0 for column in zip(heads, *rows, strict=True)]
    rule = ["-" * max(width, 3) for width in widths]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (heads, rule, *rows)
    )
