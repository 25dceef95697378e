"""Reader: from text to encoder inputs, the part of a ranker for tokenizing threads, without torch."""

from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.chunking import chunk_bounds
from farrank_rankers.errors import SourceError, SpecError
from farrank_rankers.family import (
    BiEncoderOptions,
    CrossEncoderOptions,
    Family,
    MaxSimOptions,
    Options,
    family_named,
)
from farrank_rankers.instruction import (
    INSTRUCTION_TOKENS,
    instruction_of,
    why_no_instruction,
    with_instruction,
)
from farrank_rankers.prompt import Prompt
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokenizer import Frame, Run, TextTokenizer, finished
from farrank_rankers.tokens import Chunk, EncoderInput, IntArray, Role, TokenizedText


@dataclass(frozen=True, slots=True)
class PositionBudget:
    """The room that a tokenizer's special tokens leave in a backbone's positions."""

    tokenizer: TextTokenizer
    backbone: BackboneFacts

    def left_for_window(self, family: Family, query_positions: int, options: Options) -> int | None:
        """Count the document tokens that fit into one input; None if there is no limit, ≤ 0 if none fit."""
        taken = query_positions + self.for_instructions(options) if family.plan == "pair" else 0
        if (prompt := _prompt_of(options, self.tokenizer)) is not None:
            most = self.backbone.max_positions
            return None if most is None else most - prompt.special_tokens - taken
        asked, read = _prefixes(options, self.tokenizer)
        return self._left(family, asked if family.plan == "pair" else read, taken)

    def left_for_query(self, family: Family, options: Options) -> int | None:
        """Count the query tokens that fit into a separate input; None if there is no limit."""
        asked, _ = _prefixes(options, self.tokenizer)
        return self._left(family, asked, self.for_instructions(options))

    def for_instructions(self, options: Options) -> int:
        """Count the tokens that a call's instruction may have beyond the ranker's own."""
        own, positions = instruction_of(options), self.backbone.max_positions
        if own is None:
            return 0
        most = INSTRUCTION_TOKENS if positions is None else min(INSTRUCTION_TOKENS, positions // 8)
        return max(0, most - len(self.tokenizer.ids(own)))

    def framing(self, family: Family, options: Options) -> tuple[int, int]:
        """Count the tokens around a query and around a chunk that are encoded separately."""
        special = _frame_of(family, self.tokenizer, self.backbone).special_tokens
        asked, read = _prefixes(options, self.tokenizer)
        return special + len(asked.ids), special + len(read.ids)

    def _left(self, family: Family, prefix: "_Prefix", taken: int) -> int | None:
        if self.backbone.max_positions is None:
            return None
        taken += _frame_of(family, self.tokenizer, self.backbone).special_tokens
        taken += len(prefix.ids)
        return self.backbone.max_positions - taken


def _prefixes(options: Options, tokenizer: TextTokenizer) -> tuple["_Prefix", "_Prefix"]:
    """Give the prefixes of a query and of a chunk."""
    asked = read = ""
    markers: tuple[int | None, int | None] = None, None
    if isinstance(options, CrossEncoderOptions):
        asked = options.query_prefix
    if isinstance(options, BiEncoderOptions | MaxSimOptions):
        asked, read = options.query_prefix, options.document_prefix
    if isinstance(options, MaxSimOptions):
        markers = options.query_marker, options.document_marker
    return _Prefix.of(asked, tokenizer, markers[0]), _Prefix.of(read, tokenizer, markers[1])


class _Prefix(NamedTuple):
    """Tokens (T,) before a text, and the white space after them that belongs to the text's first token.

    `joined` is the text after the `marker` if its end and a text's beginning may be one token, else empty.
    `marker` has at most one token, which is the first of `ids`.
    """

    ids: IntArray
    spaces: str
    joined: str
    marker: IntArray

    @classmethod
    def of(cls, text: str, tokenizer: TextTokenizer, marker: int | None = None) -> "_Prefix":
        """Tokenize a prefix. Most tokenizers mark the next word's start, with or without white space."""
        bare = text.rstrip()
        ids = tokenizer.ids(bare)
        apart = [*ids.tolist(), *tokenizer.ids("a").tolist()]
        spaces = "" if apart == tokenizer.ids(f"{text}a").tolist() else text[len(bare) :]
        joined = "" if text != bare and tokenizer.splits_at_spaces else text
        first = np.array([] if marker is None else [marker], dtype=np.int32)
        return cls(np.append(first, ids), spaces, joined, first)


class Reader:
    """Reads queries and documents the way one ranker was trained to; several threads may share it.

    `pad_id` is for `collate`; `longest_input` is the longest encoder input that can come out, and
    `max_input_tokens` the longest with another instruction.
    Raises: SpecError if query and window do not fit the backbone; SourceError if the tokenizer does not.
    """

    def __init__(self, spec: RankerSpec, tokenizer: TextTokenizer, backbone: BackboneFacts) -> None:
        self.tokenizer = tokenizer
        self.backbone = backbone
        family = family_named(spec.family)
        self.pad_id = tokenizer.pad_id(backbone.pad_token_id)
        of_model = backbone.pad_token_id
        if family.classifier and of_model is not None and of_model >= 0:
            # A causal classifier scores the last token that is not config.json's padding.
            self.pad_id = of_model
        self._framed_as_pairs = family.framed_as_pairs
        self._is_skipped = _skipped_tokens(spec.options, tokenizer)
        self._has_token_types = backbone.token_types > 1 and tokenizer.files.gives_token_types(
            backbone.architecture, backbone.tokenizer_class
        )
        self._frame_texts(spec)
        self._check_ends()
        most = self._longest_input(PositionBudget(tokenizer, backbone).for_instructions(spec.options))
        if backbone.max_positions is not None:
            most = max(self.longest_input, min(most, backbone.max_positions))
        self.max_input_tokens = most
        self._check_fit()

    def _frame_texts(self, spec: RankerSpec) -> None:
        """Tokenize all that stands around texts."""
        self.spec, family = spec, family_named(spec.family)
        self._prompt = _prompt_of(spec.options, self.tokenizer)
        self._frame = self._prompt.frame if self._prompt else _frame_of(family, self.tokenizer, self.backbone)
        asked, read = _prefixes(spec.options, self.tokenizer)
        self._query_prefix, self._query_spaces, self._query_joined, self._query_marker = asked
        self._chunk_prefix, self._chunk_spaces = read.ids, read.spaces
        # No text has the spaces behind it as part of its first token.
        self._chunk_prefix_alone = np.append(read.ids, self.tokenizer.ids(read.spaces))
        self.longest_input = self._longest_input()

    def _check_ends(self) -> None:
        """Refuse a `text_head` whose vector has no place. Raises: SpecError naming the token."""
        if self.spec.maxsim is None or not self.spec.maxsim.text_head:
            return
        for part, at, end in ((self._frame.parts[0], 0, "beginning"), (self._frame.parts[-1], -1, "end")):
            if part.shape[1] == 0:
                raise SpecError(
                    f"text_head needs a special token at the {end} of texts; the tokenizer has none"
                )
            if self._is_skipped is not None and self._is_skipped[part[0, at]]:
                raise SpecError(
                    f"skipped holds {part[0, at]}, the special token in whose place a text_head stands"
                )

    def instructed(self, instruction: str) -> "Reader":
        """Make a reader with another instruction; an empty one means the ranker's own.

        Raises: SpecError if the ranker takes none, or its inputs have no room for it.
        """
        if not instruction:
            return self
        if (why := why_no_instruction(self.spec.family, self.spec.options)) is not None:
            raise SpecError(f"is {instruction[:100]!r}; it must be empty: {why}")
        other = copy(self)
        other._frame_texts(replace(self.spec, options=with_instruction(self.spec.options, instruction)))
        if (over := other.longest_input - self.max_input_tokens) > 0:
            tokens = len(self.tokenizer.ids(instruction))
            raise SpecError(f"has {tokens} tokens; the ranker's inputs have room for {max(0, tokens - over)}")
        return other

    def read_query(self, text: str) -> TokenizedText:
        """Tokenize a query, keep `max_query_tokens` and count the rest.

        Raises: ValueError if the text has a lone surrogate.
        """
        return finished(self.query_steps(text))

    def query_steps(self, text: str) -> Generator[int, None, TokenizedText]:
        """Read as `read_query` does, a piece of bounded size at each step; yield the progress.

        Raises: ValueError if the text has a lone surrogate.
        """
        limit = self.spec.max_query_tokens
        if self._prompt is not None:
            return self._prompt.query_steps(text, limit)
        if self._query_joined:
            return self._joined_steps(text, limit)
        return self.tokenizer.steps(text, limit, count_tokens=True, spaces=self._query_spaces)

    def _joined_steps(self, text: str, limit: int) -> Generator[int, None, TokenizedText]:
        """Read a query together with its prefix, as the model's library does; keep `limit` tokens of it."""
        most = len(self._query_prefix) - len(self._query_marker) + limit
        read = yield from self.tokenizer.steps(text, most, count_tokens=True, spaces=self._query_joined)
        own = int((read.ends <= 0).sum())  # tokens of the prefix alone
        kept = slice(own, min(own + limit, most))
        cut = len(text) - int(read.starts[kept.stop]) if len(read) > kept.stop else read.characters_cut
        return TokenizedText(
            ids=read.ids[kept],
            starts=read.starts[kept],
            ends=read.ends[kept],
            characters_cut=cut,
            total_tokens=None if read.total_tokens is None else read.total_tokens - own,
            before=np.append(self._query_marker, read.ids[:own]),
        )

    def read_document(
        self, text: str, max_chunks: int | None = None, *, count_tokens: bool = False
    ) -> TokenizedText:
        """Tokenize as much of a document as `max_document_tokens` and `max_chunks` chunks can hold.

        With `count_tokens` the rest is tokenized, too, to count the tokens that were cut.
        Raises: ValueError if the text has a lone surrogate or max_chunks < 1.
        """
        limit = self.spec.readable_tokens(max_chunks)
        return finished(self.document_steps(text, limit, count_tokens=count_tokens))

    def document_steps(
        self, text: str, limit: int, *, count_tokens: bool = False
    ) -> Generator[int, None, TokenizedText]:
        """Read at most `limit` tokens, a piece of bounded size at each step; yield the progress.

        Raises: ValueError if the text has a lone surrogate.
        """
        return self.tokenizer.steps(text, limit, count_tokens=count_tokens, spaces=self.document_spaces)

    @property
    def framing_tokens(self) -> int:
        """Count the tokens around query and chunk in an input, in a plan of pairs."""
        return len(self._query_prefix) + (self._prompt or self._frame).special_tokens

    @property
    def tokens_before_window(self) -> int:
        """Count the tokens before a chunk's own in its input, in a plan of separate inputs."""
        return self._frame.parts[0].shape[1] + len(self._chunk_prefix)

    @property
    def document_spaces(self) -> str:
        """The spaces before a document in its prompt, which belong to its first token; usually empty."""
        return self._chunk_spaces if self._prompt is None else self._prompt.document_spaces

    def split(self, document: TokenizedText, max_chunks: int | None = None) -> tuple[Chunk, ...]:
        """Split a document into chunks, at least one.

        Raises: ValueError if max_chunks is less than 1.
        """
        tokens, characters = self.places(document, max_chunks)
        return tuple(
            Chunk(index, document.ids[first:end], start, last)
            for index, ((first, end), (start, last)) in enumerate(
                zip(tokens.tolist(), characters.tolist(), strict=True)
            )
        )

    def places(self, document: TokenizedText, max_chunks: int | None = None) -> tuple[IntArray, IntArray]:
        """Give each chunk's place among the document's tokens, and among its characters.

        Shapes: (C, 2) each, from the first to the one after the last.
        Raises: ValueError if max_chunks is less than 1.
        """
        tokens = chunk_bounds(self.spec.chunking, len(document), max_chunks)
        characters = np.zeros_like(tokens)
        if len(document):
            characters[:, 0] = document.starts[tokens[:, 0]]
            # The largest end between each pair of places, in one call: every call of numpy costs time.
            characters[:, 1] = np.maximum.reduceat(np.append(document.ends, 0), tokens.ravel())[::2]
        return tokens, characters

    def query_input(self, query: TokenizedText) -> EncoderInput:
        """Frame a query that is encoded separately.

        Raises: ValueError if the plan is pair.
        """
        if self.spec.plan != "dual":
            raise ValueError(f"family {self.spec.family} has plan pair: its query is part of every chunk")
        framed = self._alone((self._before(query), Role.SPECIAL), (query.ids, Role.QUERY))
        if isinstance(self.spec.options, MaxSimOptions):
            return _expanded(framed, self.spec.options)
        # Query and chunk have the same frame: token types distinguish them, as in a pair.
        return _of_one_type(framed) if self._framed_as_pairs else framed

    def chunk_input(self, query: TokenizedText | None, chunk: Chunk) -> EncoderInput:
        """Frame a chunk: with its query if the plan is pair, alone (query None) if it is dual.

        Raises: ValueError if a query is missing, or given although the plan is dual.
        """
        framed = self.framed(query, chunk)
        if self._is_skipped is None:
            return framed
        return replace(framed, roles=self.compared_roles(framed.roles, framed.input_ids))

    def framed(self, query: TokenizedText | None, chunk: Chunk) -> EncoderInput:
        """Frame a chunk, whose roles depend only on its length.

        Raises: as `chunk_input`.
        """
        if self.spec.plan == "dual":
            if query is not None:
                raise ValueError(f"family {self.spec.family} has plan dual: its chunks take no query")
            prefix = self._chunk_prefix if len(chunk) else self._chunk_prefix_alone
            return self._alone((prefix, Role.SPECIAL), (chunk.ids, Role.DOCUMENT))
        if query is None:
            raise ValueError(f"family {self.spec.family} has plan pair: its chunks need the query")
        # Padded to the length of the ranker's training, if it has one.
        padding = np.full(max(0, (self.spec.pad_query_to or 0) - len(query)), self.pad_id, dtype=np.int32)
        asked = [(self._before(query), Role.SPECIAL), (query.ids, Role.QUERY), (padding, Role.PADDING)]
        if query.behind is not None:
            asked.append((query.behind, Role.SPECIAL))
        read = (chunk.ids, Role.DOCUMENT)
        if self.document_spaces and not len(chunk):  # the spaces before an empty document are the template's
            read = (self.tokenizer.ids(self.document_spaces), Role.SPECIAL)
        return self._framed(asked, [read])

    def compared_roles(self, roles: IntArray, input_ids: IntArray) -> IntArray:
        """Mark the tokens of documents' inputs whose vectors are not compared.

        Shapes: roles (L,), input_ids (…, L) -> (…, L).
        """
        if self._is_skipped is None:
            return np.broadcast_to(roles, input_ids.shape)
        skipped = self._is_skipped[input_ids] & (roles != int(Role.PADDING))
        return np.where(skipped, np.int32(Role.SKIPPED), roles)

    def _before(self, query: TokenizedText) -> IntArray:
        return self._query_prefix if query.before is None else query.before

    def _alone(self, *runs: Run) -> EncoderInput:
        """Put special tokens around a text that is encoded separately."""
        if not self.backbone.known.framed and not any(len(ids) for ids, _ in runs):
            # An input needs at least one position; nothing reads this one.
            runs = ((np.array([self.pad_id], dtype=np.int32), Role.PADDING),)
        return self._framed([], runs) if self._framed_as_pairs else self._framed(runs)

    def _framed(self, *texts: Sequence[Run]) -> EncoderInput:
        """Put special tokens around one text or a pair."""
        framed = self._frame.around(*texts)
        return framed if self._has_token_types else _of_one_type(framed)

    def _longest_input(self, more: int = 0) -> int:
        """Count the positions of the longest query with a full window, and `more` before the query."""
        query = max(self.spec.max_query_tokens, self.spec.pad_query_to or 0)
        window = min(self.spec.chunking.window, self.spec.chunking.max_document_tokens)
        query += more + len(self._query_prefix)
        special = (self._prompt or self._frame).special_tokens
        longest = special + (
            query + window if self.spec.plan == "pair" else max(query, len(self._chunk_prefix) + window)
        )
        expanded = self.spec.maxsim.expand_to if self.spec.maxsim else 0
        return max(longest, expanded)

    def _check_fit(self) -> None:
        """Refuse inputs that are too long for the backbone."""
        limit = self.backbone.max_positions
        if limit is not None and self.longest_input > limit:
            raise SpecError(
                f"chunking.window is {self.spec.chunking.window} and max_query_tokens "
                f"{self.spec.max_query_tokens}: an input of {self.longest_input} tokens (special tokens "
                f"included) would exceed the {limit} positions of {self.spec.backbone}"
            )
        if self.spec.plan == "dual" and self.backbone.known.framed and not self._frame.special_tokens:
            raise SourceError("tokenizer.json adds no special token: an empty document would have no input")
        words = self.tokenizer.tokenizer.get_vocab_size()
        if self.backbone.vocabulary is not None and words > self.backbone.vocabulary:
            raise SourceError(
                f"tokenizer.json has {words} tokens; config.json has vocab_size {self.backbone.vocabulary}"
            )
        if self._has_token_types and max(self._frame.text_types) >= self.backbone.token_types:
            raise SourceError(
                f"tokenizer.json uses token type {max(self._frame.text_types)}; "
                f"config.json has type_vocab_size {self.backbone.token_types}"
            )


class ChunkFramer:
    """Frames many chunks with one query, as `Reader.chunk_input` does; several threads may share it.

    Inputs may share arrays.
    Raises: as `Reader.chunk_input`.
    """

    def __init__(self, reader: Reader, query: TokenizedText | None) -> None:
        self.reader, self.query = reader, query
        # By the chunk's length: an input, and the start of its chunk.
        self._alike: dict[int, tuple[EncoderInput, int]] = {}

    def inputs(self, chunks: Sequence[Chunk]) -> list[EncoderInput]:
        """Frame chunks, in their order."""
        framed: list[EncoderInput] = []
        for length, some in groupby(chunks, key=len):
            alike = list(some)
            pattern, start = self._pattern(length, alike[0])
            rows = np.empty((len(alike), pattern.tokens), dtype=np.int32)  # (P, L)
            rows[:] = pattern.input_ids
            for ids, chunk in zip(rows, alike, strict=True):
                ids[start : start + length] = chunk.ids
            roles = self.reader.compared_roles(pattern.roles, rows)  # (P, L)
            framed += [EncoderInput(*each, pattern.token_type_ids) for each in zip(rows, roles, strict=True)]
        return framed

    def _pattern(self, length: int, chunk: Chunk) -> tuple[EncoderInput, int]:
        if length not in self._alike:
            pattern = self.reader.framed(self.query, chunk)
            self._alike[length] = pattern, int(np.argmax(pattern.roles == int(Role.DOCUMENT)))
        return self._alike[length]


def _prompt_of(options: Options, tokenizer: TextTokenizer) -> Prompt | None:
    """Tokenize a template, if the options have one."""
    if not isinstance(options, CrossEncoderOptions) or not options.template:
        return None
    return Prompt.of(options, tokenizer)


def _frame_of(family: Family, tokenizer: TextTokenizer, backbone: BackboneFacts) -> Frame:
    """Choose the special tokens around a family's texts.

    The papers' families have one separator between query and document for every backbone, as in the published
    code; a cross-encoder was trained with its tokenizer's own pair. A table of vectors has none.
    Raises: SpecError if the backbone cannot tell a query from a document in one input.
    """
    if not backbone.known.framed:
        if family.reads_as != "dual":
            raise SpecError("family must be biencoder: static embeddings read no query and document together")
        return Frame.without_special_tokens()
    if family.reads_as != "pair":
        return tokenizer.single
    return tokenizer.pair if family.classifier else tokenizer.pair.with_one_separator()


def _skipped_tokens(options: Options, tokenizer: TextTokenizer) -> NDArray[np.bool_] | None:
    """Make a table of the tokens that are skipped, (V,); None if none is.

    Raises: SpecError if the tokenizer lacks a token that the options name.
    """
    if not isinstance(options, MaxSimOptions):
        return None
    words = tokenizer.tokenizer.get_vocab_size()
    for token in options.tokens():
        if token >= words:
            raise SpecError(f"options name token {token}; tokenizer.json has {words}")
    if not options.skipped:
        return None
    table = np.zeros(words, dtype=np.bool_)
    table[list(options.skipped)] = True
    return table


def _expanded(query: EncoderInput, options: MaxSimOptions) -> EncoderInput:
    """Fill a query's input up with expansion tokens, behind its last special token, of token type 0."""
    missing = options.expand_to - query.tokens
    if missing <= 0 or options.expansion_token is None:
        return query
    role = Role.SPECIAL if options.expansion_attended else Role.EXPANSION

    def filled(values: IntArray, filler: int) -> IntArray:
        return np.append(values, np.full(missing, filler, dtype=np.int32))

    return EncoderInput(
        input_ids=filled(query.input_ids, options.expansion_token),
        roles=filled(query.roles, role),
        token_type_ids=filled(query.token_type_ids, 0),
    )


def _of_one_type(item: EncoderInput) -> EncoderInput:
    return replace(item, token_type_ids=np.zeros_like(item.token_type_ids))
