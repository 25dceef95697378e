"""A ranker's spec: the checked content of `ranker.json`, without torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.calibration import Calibration
from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking, adjusted, chunk_count, readable_tokens
from farrank_rankers.depth.plan import READ_ON, DepthPlan
from farrank_rankers.errors import SpecError
from farrank_rankers.family import (
    Aggregation,
    BiEncoderOptions,
    MaxSimOptions,
    Options,
    Plan,
    VectorOptions,
    WindowAggregation,
    check_count,
    family_named,
)
from farrank_rankers.json_values import loads, read_fields, short
from farrank_rankers.tokenizer import TokenizerFiles

OptionsT = TypeVar("OptionsT", bound=Options)

# all-MiniLM-L6-v2 on SQuAD (docs/decisions/0025-scores-between-0-and-1.md). Other models may differ.
COSINE_CALIBRATION = Calibration(scale=12.0, offset=-5.0)
# Tokens of a long document, for sums over chunks of documents that are read whole.
_LONG_DOCUMENT = 4096


@dataclass(frozen=True, slots=True)
class RankerSpec:
    """A ranker's family, backbone and limits.

    `backbone` is a name for people. `pad_query_to` (tokens) pads the query *before* the first separator, so
    that a chunk's positions do not move with the query's length; None pads nothing. `options` are the
    family's; None means its defaults. `provenance` is the origin of the weights. `calibration` converts a
    document's raw score to one between 0 and 1; None means the family's own. `depth` is the plan of adaptive
    depth; None means the default one. These three and `backbone` are not part of a ranker's version.
    Raises: SpecError naming field, value and limit.
    """

    family: str
    backbone: str
    chunking: Chunking
    max_query_tokens: int = 32
    pad_query_to: int | None = None
    options: Options = field(default=None)  # type: ignore[assignment]  # filled in below
    provenance: Mapping[str, str] = field(default_factory=dict, hash=False)
    calibration: Calibration | None = None
    depth: DepthPlan | None = None

    def __post_init__(self) -> None:
        """Fill in the family's options and check every field's limits."""
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
        self._check_positions()
        object.__setattr__(self, "provenance", dict(self.provenance))
        if not all(isinstance(text, str) for entry in self.provenance.items() for text in entry):
            raise SpecError(f"provenance is {self.provenance!r}; its keys and values must be strings")

    def _check_positions(self) -> None:
        """Refuse a limit on a document's tokens for whose chunks the aggregator lacks positions."""
        placed, chunking = self.chunk_positions, self.chunking
        if placed is None:
            return
        if (trained := getattr(self.options, "trained_chunks", None)) is not None:
            check_count("trained_chunks", trained, at_least=1)
        chunks = chunk_count(chunking, chunking.max_document_tokens)
        # A ranker that learned from fewer chunks reads as many, also within its limit.
        limited = trained is None and chunking.max_document_tokens < WHOLE_DOCUMENT
        if placed < 1 or (chunks > placed and limited):
            raise SpecError(
                f"chunking.max_document_tokens is {chunking.max_document_tokens}: with a window of "
                f"{chunking.window} and a stride of {chunking.stride} that may be {chunks} chunks; the "
                f"positions of the aggregator's transformer hold at most {max(0, placed)}"
            )

    @property
    def plan(self) -> Plan:
        """Whether an encoder input holds query and chunk (pair) or one of them (dual)."""
        return family_named(self.family).plan

    @property
    def aggregation(self) -> Aggregation | WindowAggregation | None:
        """The aggregation of chunks' scores to a document's; None if a family's chunks have none."""
        of_family = family_named(self.family).aggregation
        found: Aggregation | WindowAggregation | None = getattr(self.options, "aggregation", of_family)
        return found

    @property
    def scores_grow(self) -> bool:
        """Whether a document's score never falls when more of its chunks are read.

        The best documents so far then stay above the others when only they are read on, so that scores of
        different depths compare.
        """
        chooses = self.maxsim is not None and self.maxsim.compared_windows is not None
        return self.aggregation in ("max", "union") and not chooses

    @property
    def depth_plan(self) -> DepthPlan:
        """The plan of adaptive depth: its own, or the default one.

        By default the best documents are read on if the scores of all documents then still compare.
        """
        return self.depth or (READ_ON if self.scores_grow else DepthPlan())

    @property
    def similarity(self) -> Aggregation | None:
        """A bi-encoder's aggregation of chunks' products with the query; None for other families."""
        return self.options.aggregation if isinstance(self.options, BiEncoderOptions) else None

    @property
    def maxsim(self) -> MaxSimOptions | None:
        """The options of a family that compares token vectors by MaxSim; None for other families."""
        return self.options if isinstance(self.options, MaxSimOptions) else None

    @property
    def chunk_positions(self) -> int | None:
        """The number of chunks for which the aggregator has trained positions; None if it needs none."""
        return self.options.chunk_positions(max(self.max_query_tokens, self.pad_query_to or 0))

    def most_chunks(self, max_chunks: int | None = None) -> int | None:
        """Bound the chunks of one document that the ranker scores together; None if nothing does.

        `max_chunks` is the caller's limit. An aggregator with positions for chunks reads as many as it has,
        or as many as `max_document_tokens` holds.
        """
        placed = self.chunk_positions
        if placed is None:
            return max_chunks
        placed = min(placed, chunk_count(self.chunking, self.chunking.max_document_tokens))
        return placed if max_chunks is None else min(placed, max_chunks)

    def readable_tokens(self, max_chunks: int | None = None) -> int:
        """Count the tokens of a document that can be in one of its chunks, from its beginning.

        Raises: ValueError if max_chunks is less than 1.
        """
        return readable_tokens(self.chunking, self.most_chunks(max_chunks))

    @property
    def document_calibration(self) -> Calibration:
        """The calibration of a document's raw score to one between 0 and 1.

        That of MaxSim is for its mean over the query's vectors, a cosine.
        A sum over chunks grows with their number, and its sigmoid would be 1 for every long document. Unless
        the spec says otherwise, it is divided by the maximum number of a document's chunks.
        """
        if self.calibration is not None:
            return self.calibration
        of_chunk = self._family_calibration
        return replace(of_chunk, scale=of_chunk.scale / self._chunks_summed)

    @property
    def chunk_calibration(self) -> Calibration:
        """The calibration of a chunk's own score to one between 0 and 1, if chunks have their own scores."""
        if self.calibration is None:
            return self._family_calibration
        return replace(self.calibration, scale=self.calibration.scale * self._chunks_summed)

    @property
    def _family_calibration(self) -> Calibration:
        unit_length = isinstance(self.options, BiEncoderOptions | MaxSimOptions) and self.options.normalize
        return COSINE_CALIBRATION if unit_length else Calibration()

    @property
    def _chunks_summed(self) -> int:
        """The maximum number of chunks' scores in a document's sum; 1 if they are not summed."""
        if self.aggregation != "sum":
            return 1
        most = self.chunking.max_document_tokens
        return chunk_count(self.chunking, most if most < WHOLE_DOCUMENT else _LONG_DOCUMENT)

    def options_as(self, kind: type[OptionsT]) -> OptionsT:
        """Return the options with the family's type.

        Raises: SpecError if they are another family's.
        """
        if not isinstance(self.options, kind):
            raise SpecError(f"options are {type(self.options).__name__}; they must be {kind.__name__}")
        return self.options

    def to_json(self) -> str:
        """Write the spec as the text of a `ranker.json`."""
        values = asdict(self)
        # The text as it was before these fields existed: versions are hashes of it.
        if self.calibration is None:
            del values["calibration"]
        if self.depth is None:
            del values["depth"]
        elif self.depth.figures is None:
            del values["depth"]["figures"]
        for name in self.options.UNSAID:
            if getattr(self.options, name) == getattr(type(self.options)(), name):
                del values["options"][name]
        _drop_unsaid(values["options"])
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "RankerSpec":
        """Read the text of a `ranker.json`.

        Raises: SpecError naming the key that is missing, unknown or out of its limits.
        """
        try:
            values = loads(text)
        except ValueError as error:
            raise SpecError(f"the text is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise SpecError(f"the text is {short(values)}; it must be an object")
        kinds = {"options": family_named(values.get("family", "")).options}
        return read_fields(cls, values, "the spec", SpecError, kinds)


def _drop_unsaid(values: Any) -> None:
    """Drop the fields of heads' layers that were added later, at their defaults, for the same reason."""
    if isinstance(values, dict):
        if values.get("residual") is False:
            del values["residual"]
        for value in values.values():
            _drop_unsaid(value)
    elif isinstance(values, list | tuple):
        for value in values:
            _drop_unsaid(value)


def family_options(
    family: str,
    backbone: BackboneFacts,
    changes: Mapping[str, Any] | None = None,
    preset: Options | None = None,
) -> Options:
    """Make a family's options, with the pooling of the backbone's training, and changes as in `ranker.json`.

    `preset` replaces the family's own.

    Raises: SpecError if the family is unknown, or naming the option that is unknown or out of its limits.
    """
    options = preset or family_named(family).options()
    if isinstance(options, VectorOptions):
        options = replace(options, pooling=backbone.pooling)
    return read_fields(type(options), asdict(options) | dict(changes or {}), "options", SpecError)


def content_version(
    spec: RankerSpec, files: TokenizerFiles, config: Mapping[str, Any], weights_digest: str
) -> str:
    """Hash spec, tokenizer, configuration and weights to 16 hexadecimal digits.

    Names, calibration and depth are no part of it. The same content gives the same version on every machine
    and device, before and after saving, and from an export, which keeps its ranker's `weights_digest`.
    """
    digest = hashlib.blake2b(digest_size=8)
    unnamed = replace(spec, backbone="-", provenance={}, calibration=None, depth=None).to_json()
    texts = (unnamed, files.tokenizer_json, files.config_json, json.dumps(config, sort_keys=True))
    for text in (*texts, weights_digest):
        digest.update(hashlib.blake2b(text.encode()).digest())
    return digest.hexdigest()


def encodings_version(
    spec: RankerSpec, files: TokenizerFiles, config: Mapping[str, Any], weights_digest: str
) -> str:
    """Hash as `content_version` does, without the limits on a document's tokens and compared windows.

    Rankers that differ only in these have the same version here: a chunk's vectors do not depend on them.
    """
    whole = replace(spec, chunking=adjusted(spec.chunking, max_document_tokens=WHOLE_DOCUMENT))
    if spec.maxsim is not None:
        whole = replace(whole, options=replace(spec.maxsim, compared_windows=None))
    return content_version(whole, files, config, weights_digest)
