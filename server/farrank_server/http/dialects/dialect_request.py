"""A client's request in any of the shapes, and its translation to the contract's request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import InvalidArgument
from farrank_server.access.callers import Caller
from farrank_server.engine.loaded.ranker import Scorer
from farrank_server.http.dialects.models import Models
from farrank_server.http.json_bodies import json_of, refuse_surrogates
from farrank_server.service.evidence import DEFAULT_DOCUMENTS

BodyDocument = str | dict[str, Any]

# The fields in which multimodal clients send what no ranker can read.
MEDIA = ("image", "image_url", "video", "video_url", "audio_url", "input_audio")


class SpansBody(msgspec.Struct):
    """Cohere's options for the passages of each document."""

    mode: Literal["enabled", "disabled"] | None = None
    threshold: float | None = None
    max_spans: int | None = None


class DepthBody(msgspec.Struct):
    """Farrank's own option: how much to read of each document, with at most one budget."""

    mode: Literal["all", "adaptive"]
    chunks: Annotated[float, msgspec.Meta(ge=1, le=10_000)] | None = None
    tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    milliseconds: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] | None = None

    def to_pb(self) -> pb.Depth:
        """The contract's depth."""
        return pb.Depth(**{**msgspec.structs.asdict(self), "mode": f"DEPTH_MODE_{self.mode.upper()}"})


class RerankBody(msgspec.Struct):
    """The fields of all shapes. Clients send null for unset fields, and may send further fields."""

    query: BodyDocument | None = None
    documents: list[BodyDocument] | dict[str, Any] | None = None
    passages: list[BodyDocument] | None = None
    texts: list[str] | None = None
    model: str | None = None
    top_n: int | None = None
    top_k: int | msgspec.UnsetType | None = msgspec.UNSET
    return_documents: bool | None = None
    return_text: bool | None = None
    rank_fields: list[str] | None = None
    max_chunks_per_doc: int | None = None
    max_tokens_per_doc: int | None = None
    relevant_spans: SpansBody | None = None
    raw_scores: bool | None = None
    use_activation: bool | None = None
    truncation: bool | None = None
    truncate: bool | Literal["NONE", "START", "END"] | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None
    instruction: str | None = None
    truncate_prompt_tokens: int | None = None
    max_tokens_per_query: int | None = None
    depth: Literal["all", "adaptive"] | DepthBody | None = None
    evidence: Literal["chunks", "sentences"] | None = None
    evidence_documents: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DialectRequest:
    """A parsed request: `documents` are as the client sent them, `texts` holds the text read of each.

    `ranker` is the name of the ranker, perhaps with the version asked for. `unknown_model` is
    the client's name of a model that no ranker has, if the default ranker stands for it.
    """

    body: RerankBody
    scorer: Scorer
    ranker: str
    unknown_model: str
    query: str
    documents: Sequence[BodyDocument]
    texts: Sequence[str]
    top_n: int

    @property
    def wants_spans(self) -> bool:
        """Whether the client asks for each document's passages, or for their sentences."""
        spans = self.body.relevant_spans
        if spans is None:
            return self.wants_sentences or self.wants_context
        return spans.mode != "disabled"

    @property
    def wants_context(self) -> bool:
        """Whether the passages of all documents are packed into a budget."""
        return bool(self.body.context_tokens)

    @property
    def wants_sentences(self) -> bool:
        """Whether each document's passages are sentences."""
        return self.body.evidence == "sentences"

    @property
    def returns_documents(self) -> bool:
        """Whether each result includes its document."""
        return bool(self.body.return_documents or self.body.return_text)

    def to_pb(self) -> pb.RerankRequest:
        """The contract's request, for all documents: cuts in documents beyond top_n are reported, too.

        Raises: InvalidArgument naming the field.
        """
        body = self.body
        raw = body.raw_scores or body.use_activation is False or body.passages is not None
        with refuse_surrogates():
            options = pb.RerankOptions(
                ranker=self.ranker,
                max_chunks=self._max_chunks(),
                # A context is packed from the documents that are returned.
                top_n=self.top_n if self.wants_context else 0,
                return_chunk_scores=self.wants_spans and not (self.wants_sentences or self.wants_context),
                score_scale=pb.SCORE_SCALE_RAW if raw else pb.SCORE_SCALE_SIGMOID,
                depth=self._depth(),
                # Clients of these shapes sort by score, or get the scores in the order of their texts.
                comparable_scores=True,
                instruction=body.instruction,
                evidence=f"EVIDENCE_UNIT_{body.evidence.upper()}" if body.evidence else None,
                evidence_documents=self._evidence_documents(),
                context_tokens=_at_least(0, "context_tokens", body.context_tokens or 0),
            )
            request = pb.RerankRequest(query=self.query, options=options)
            for text in self.texts:
                request.documents.add(text=text)
            return request

    def _evidence_documents(self) -> int:
        """The number of documents with sentences: at most 10 of those returned, unless the request says."""
        documents = _at_least(0, "evidence_documents", self.body.evidence_documents or 0)
        if not documents and self.wants_sentences and self.top_n:
            documents = min(self.top_n, DEFAULT_DOCUMENTS)
        return documents

    def _depth(self) -> pb.Depth | None:
        depth = self.body.depth
        return (DepthBody(depth) if isinstance(depth, str) else depth).to_pb() if depth else None

    def _max_chunks(self) -> int:
        """The limit on chunks of a document; 0 if the request has none."""
        body = self.body
        limits = []
        chunking = self.scorer.members[0].spec.chunking
        if body.max_chunks_per_doc is not None:
            limits.append(_at_least(1, "max_chunks_per_doc", body.max_chunks_per_doc))
        # vLLM's -1 means the model's own limit.
        prompt = None if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens
        given = {"max_tokens_per_doc": body.max_tokens_per_doc, "truncate_prompt_tokens": prompt}
        for name, value in given.items():
            if value is not None:
                tokens = _at_least(1, name, value)
                limits.append(1 + max(0, tokens - chunking.window) // chunking.stride)
        return min(limits, default=0)


def understand(
    body: RerankBody, models: Models, caller: Caller, *, accepts_unknown: bool = False
) -> DialectRequest:
    """Find the ranker, the texts and the number of results of a request.

    TEI ignores the name of a model; `accepts_unknown` says that another shape does, too.
    Raises: InvalidArgument naming the field; NotFound or PermissionDenied if there is no such model.
    """
    documents = body.documents if body.passages is None else body.passages
    if isinstance(documents, dict):
        # In vLLM's form each content part is a document.
        documents = [{"text": text} for text in _texts_of(documents.get("content"), "documents.content")]
    given: Sequence[BodyDocument] | None = documents if body.texts is None else body.texts
    if given is None:
        raise InvalidArgument("documents: is missing; it must be a list of texts")
    name, top_n = "top_n", body.top_n
    if body.top_k is not msgspec.UNSET:
        name, top_n = "top_k", body.top_k
    if body.relevant_spans and body.relevant_spans.max_spans is not None:
        _at_least(0, "relevant_spans.max_spans", body.relevant_spans.max_spans)
    is_tei = body.texts is not None
    scorer, ranker, unknown = models.ranker(body.model, caller, accepts_unknown=accepts_unknown or is_tei)
    _check_unsupported(body, scorer)
    query = _text_of(body.query or "", "query")
    texts = [_text_of(each, f"documents[{n}]", body.rank_fields) for n, each in enumerate(given)]
    return DialectRequest(body, scorer, ranker, unknown, query, given, texts, _at_least(0, name, top_n or 0))


def _check_unsupported(body: RerankBody, scorer: Scorer) -> None:
    """Refuse fields that would change scores and cannot: ignoring them would answer another question."""
    max_query_tokens = max(each.spec.max_query_tokens for each in scorer.members)
    if body.max_tokens_per_query and 0 < body.max_tokens_per_query < max_query_tokens:
        raise InvalidArgument(
            f"max_tokens_per_query: is {body.max_tokens_per_query}; a request cannot lower the ranker's "
            f"limit of {max_query_tokens} tokens"
        )


def _text_of(value: BodyDocument, place: str, rank_fields: Sequence[str] | None = None) -> str:
    """The text of a query or document: itself, its `text` or `content`, or its fields to rank by in order."""
    if isinstance(value, str):
        return value
    if not rank_fields and value.get("text") is None and "content" in value:
        return "\n".join(_texts_of(value["content"], f"{place}.content"))
    fields = rank_fields or ["text"]
    if missing := [name for name in fields if value.get(name) is None]:
        raise InvalidArgument(f"{place}: has no {missing[0][:100]!r}{_instead(value)}")
    values = ((name, value[name]) for name in fields)
    return "\n".join(
        each if isinstance(each, str) else json_of(each, f"{place}.{name[:100]}") for name, each in values
    )


def _texts_of(content: object, place: str) -> list[str]:
    """The texts of content parts, the form of clients that may also send images.

    Raises: InvalidArgument naming the first part that is no text.
    """
    parts = content if isinstance(content, list) else [content]
    texts = []
    for number, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise InvalidArgument(f"{place}[{number}]: has no 'text'{_instead(part)}")
        texts.append(text)
    return texts


def _instead(value: object) -> str:
    """The end of an error about a missing text, if the value is of another kind, such as an image."""
    names = [each for each in MEDIA if isinstance(value, dict) and each in value]
    return f"; it holds {names[0]!r}, and rankers read texts alone" if names else ""


def _at_least(least: int, name: str, value: int) -> int:
    if value < least:
        raise InvalidArgument(f"{name}: is {value}; it must be {least} or more")
    # The contract's integers have 32 bits, and no request holds as many of anything.
    return min(value, 2**31 - 1)
