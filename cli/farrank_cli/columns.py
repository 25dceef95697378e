"""Tables on a terminal."""

from collections.abc import Sequence


def print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their heads, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
