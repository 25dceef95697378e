"""A ranker's spec: all that `ranker.json` says, checked, and nothing that needs torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.family import Options, Plan, VectorOptions, check_count, family_named
from farrank_rankers.json_values import read_fields
from farrank_rankers.tokenizer import TokenizerFiles

OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True, slots=True)
class RankerSpec:
    """A ranker's family, backbone and limits.

    `backbone` is a name for people. `pad_query_to` (tokens) pads the query *before* the first separator, so
    that a chunk's positions do not move with the query's length; None pads nothing. `options` are the
    family's own, its defaults where none are given. `provenance` says where weights came from; neither it nor
    `backbone` takes part in a ranker's version.
    Raises: SpecError naming field, value and limit.
    """

    family: str
    backbone: str
    chunking: Chunking
    max_query_tokens: int = 32
    pad_query_to: int | None = None
    options: Options = field(default=None)  # type: ignore[assignment]  # filled in below
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Fill in the family's options and hold every field to its limits."""
        family = family_named(self.family)
        if self.options is None:
            object.__setattr__(self, "options", family.options())
        if type(self.options) is not family.options:
            raise SpecError(
                f"options are {type(self.options).__name__}; "
                f"family {self.family} takes {family.options.__name__}"
            )
        if not isinstance(self.backbone, str) or not self.backbone:
            raise SpecError(f"backbone is {self.backbone!r}; it must be a name")
        check_count("max_query_tokens", self.max_query_tokens, at_least=1)
        if self.pad_query_to is not None:
            check_count("pad_query_to", self.pad_query_to, at_least=self.max_query_tokens)
            if family.plan == "dual":
                raise SpecError(
                    f"pad_query_to is {self.pad_query_to}; it must be none: "
                    f"family {self.family} encodes queries apart"
                )
        object.__setattr__(self, "provenance", dict(self.provenance))
        if not all(isinstance(text, str) for entry in self.provenance.items() for text in entry):
            raise SpecError(f"provenance is {self.provenance!r}; its keys and values must be strings")

    @property
    def plan(self) -> Plan:
        """Whether an encoder input holds query and chunk (pair) or one of them (dual)."""
        return family_named(self.family).plan

    def options_as(self, kind: type[OptionsT]) -> OptionsT:
        """Return the options as what they are to the family.

        Raises: SpecError if they are another family's.
        """
        if not isinstance(self.options, kind):
            raise SpecError(f"options are {type(self.options).__name__}; they must be {kind.__name__}")
        return self.options

    def to_json(self) -> str:
        """Write the spec as the text of a `ranker.json`."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "RankerSpec":
        """Read the text of a `ranker.json`.

        Raises: SpecError naming the key that is missing, unknown or out of its limits.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise SpecError(f"the text is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SpecError(f"the text is {values!r}; it must be an object")
        kinds = {"options": family_named(values.get("family", "")).options}
        return read_fields(cls, values, "the spec", SpecError, kinds)


def family_options(family: str, backbone: BackboneFacts, changes: Mapping[str, Any] | None = None) -> Options:
    """Give a family its options, pooled as the backbone was trained to be, with changes as in `ranker.json`.

    Raises: SpecError if the family is unknown, or naming the option that is unknown or out of its limits.
    """
    options = family_named(family).options()
    if isinstance(options, VectorOptions):
        options = replace(options, pooling=backbone.pooling)
    return read_fields(type(options), asdict(options) | dict(changes or {}), "options", SpecError)


def content_version(
    spec: RankerSpec, files: TokenizerFiles, config: Mapping[str, Any], weights_digest: str
) -> str:
    """Hash spec (names aside), tokenizer, backbone configuration and weights to 16 hexadecimal digits.

    The same content gives the same version on every machine and device, before and after saving, and from an
    export, which keeps its ranker's `weights_digest`.
    """
    digest = hashlib.blake2b(digest_size=8)
    unnamed = replace(spec, backbone="-", provenance={}).to_json()
    texts = (unnamed, files.tokenizer_json, files.config_json, json.dumps(config, sort_keys=True))
    for text in (*texts, weights_digest):
        digest.update(hashlib.blake2b(text.encode()).digest())
    return digest.hexdigest()
