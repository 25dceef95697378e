"""Optional fields of a collection's line for first stages: expansions, impacts, a vector.

{"id": "d1", "text": "…", "expansions": ["a question that it answers"],
 "impacts": {"river": 87, "##s": 12}, "vector": [0.1, -0.2]}
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farrank_trec.errors import InputError

# With this limit the sum of the weights of a whole vocabulary still fits in Lucene's int.
MAX_IMPACT = 65_535
MAX_TOKEN_CHARACTERS = 200
MAX_ID_BYTES = 32_766  # Lucene's own limit for a term
MAX_VECTOR_WIDTH = 1024  # Lucene's own limit
MAX_VECTOR_NUMBER = 1e15  # squares beyond it or its inverse leave the range of 32-bit floats


@dataclass(frozen=True, slots=True)
class RankingFields:
    """The fields, besides the text, by which a first stage ranks a document.

    `expansions` are texts that are searched with the document's own (Nogueira et al., doc2query, 2019).
    `impacts` are the weights of tokens (SPLADE, DeepImpact). Each is None if the line lacks it.
    Shapes: vector (H,).
    """

    expansions: tuple[str, ...] | None = None
    impacts: Mapping[str, int] | None = None
    vector: tuple[float, ...] | None = None


NO_FIELDS = RankingFields()


class RankingFieldsReader:
    """Reads the fields of one line after the other, and checks that all lines have the same fields."""

    def __init__(self) -> None:
        self._first: tuple[str, RankingFields] | None = None

    def read(self, where: str, values: Mapping[str, Any]) -> RankingFields:
        """Read a line's values.

        Raises: InputError naming the place, the field and its allowed values; also if one line has a field
            and another lacks it, or vectors differ in width: a document without a field would never be found
            by it. (A list of expansions may be empty.)
        """
        found = RankingFields(
            _expansions(where, values.get("expansions")),
            _impacts(where, values.get("impacts")),
            _vector(where, values.get("vector")),
        )
        if self._first is None:
            self._first = where, found
        self._compare(where, found, *self._first)
        return found

    def _compare(self, where: str, found: RankingFields, first_where: str, first: RankingFields) -> None:
        for name in ("expansions", "impacts", "vector"):
            here, there = getattr(found, name) is not None, getattr(first, name) is not None
            if here != there:
                has, had = ("has", "has none") if here else ("has no", "has one")
                raise InputError(f"{where}: {has} {name!r}, but {first_where} {had}; every document needs it")
        if found.vector is not None and first.vector is not None and len(found.vector) != len(first.vector):
            width, expected = len(found.vector), len(first.vector)
            raise InputError(f"{where}: 'vector' has {width} numbers; that of {first_where} has {expected}")


def _expansions(where: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InputError(f"{where}: 'expansions' must be a list of strings")
    for each in value:
        _check_encodable(where, "expansions", each)
    return tuple(value)


def _impacts(where: str, value: Any) -> Mapping[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError(f"{where}: 'impacts' must be an object of tokens and their weights")
    for token, weight in value.items():
        if not token or any(each.isspace() or not each.isprintable() for each in token):
            raise InputError(
                f"{where}: 'impacts' has the token {token!r}; it must have no white space and be printable"
            )
        _check_encodable(where, "impacts", token)
        # Java counts characters beyond the first 65,536 twice, and Lucene would split a longer token.
        if (length := len(token.encode("utf-16-le")) // 2) > MAX_TOKEN_CHARACTERS:
            raise InputError(
                f"{where}: 'impacts' has a token of {length} characters (of UTF-16); "
                f"at most {MAX_TOKEN_CHARACTERS}"
            )
        if type(weight) is not int or not 1 <= weight <= MAX_IMPACT:
            raise InputError(
                f"{where}: 'impacts' gives {token!r} the weight {weight!r}; it must be a whole number "
                f"between 1 and {MAX_IMPACT:,} (quantise others, as round(weight / 5 * 256))"
            )
    return value


def _vector(where: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_VECTOR_WIDTH:
        raise InputError(f"{where}: 'vector' must be a list of 1 to {MAX_VECTOR_WIDTH:,} numbers")
    for each in value:
        if type(each) not in (int, float) or abs(each) == math.inf or each != each:
            raise InputError(f"{where}: 'vector' holds {each!r}; it must hold finite numbers")
    if not any(value):
        raise InputError(f"{where}: 'vector' holds only zeros; it would have no direction")
    longest = max(map(abs, value))
    if not 1 / MAX_VECTOR_NUMBER <= longest <= MAX_VECTOR_NUMBER:
        raise InputError(
            f"{where}: the largest number of 'vector' is {_short(longest)}; it must be between "
            f"{1 / MAX_VECTOR_NUMBER:g} and {MAX_VECTOR_NUMBER:g} (scale all vectors alike)"
        )
    return tuple(map(float, value))


def _short(number: float) -> str:
    """Write a number briefly, also an integer that is too large for a float."""
    return f"{number:g}" if number <= sys.float_info.max else f"a number of {len(str(number))} digits"


def _check_encodable(where: str, name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {name!r} holds half of a surrogate pair") from error
