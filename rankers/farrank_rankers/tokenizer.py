"""Tokenizers: their files, their special tokens around texts, and tokens of texts of any length."""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from farrank_rankers.errors import SourceError
from farrank_rankers.json_values import TOO_DEEP, read_json, read_text
from farrank_rankers.pieces import cut_pattern, find_cut, next_piece, reading_on
from farrank_rankers.stretches import WINDOW, Stretch, TokenizedWindow, Tokens, joined
from farrank_rankers.tokens import EncoderInput, IntArray, Role, TokenizedText
from farrank_rankers.words import WordTable, reads_words_alone

# Token types and normalization follow the release of transformers that saved the tokenizer, not the installed
# one, because the model was trained with the former.

# The tokenizer classes of transformers without token_type_ids, by their names without "Fast".
_CLASSES_WITHOUT_TOKEN_TYPES = frozenset(
    """
    BartTokenizer BarthezTokenizer BigBirdTokenizer BlenderbotTokenizer BloomTokenizer CLIPTokenizer
    CamembertTokenizer CodeGenTokenizer CodeLlamaTokenizer CohereTokenizer DistilBertTokenizer GPT2Tokenizer
    GPTNeoXTokenizer GemmaTokenizer LEDTokenizer LayoutLMv3Tokenizer LayoutXLMTokenizer LlamaTokenizer
    LongformerTokenizer MBart50Tokenizer MBartTokenizer MPNetTokenizer MT5Tokenizer MvpTokenizer NllbTokenizer
    OpenAIGPTTokenizer PegasusTokenizer Qwen2Tokenizer ReformerTokenizer RetriBertTokenizer RobertaTokenizer
    SeamlessM4TTokenizer T5Tokenizer TokenizersBackend UdopTokenizer WhisperTokenizer XGLMTokenizer
    XLMRobertaTokenizer
    """.split()  # noqa: SIM905
)

# Those with token_type_ids in transformers 5.
_CLASSES_WITH_TOKEN_TYPES_SINCE_5 = frozenset(
    """
    BertTokenizer DPRContextEncoderTokenizer DPRQuestionEncoderTokenizer DPRReaderTokenizer DebertaTokenizer
    DebertaV2Tokenizer FNetTokenizer LayoutLMv2Tokenizer MarkupLMTokenizer
    """.split()  # noqa: SIM905
)

# The types of models whose tokenizer has such a class, among those that distinguish token types.
_MODELS_WITHOUT_TOKEN_TYPES = frozenset(
    """
    big_bird camembert data2vec-text ibert layoutlmv3 lilt longformer mega mra retribert roberta
    roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod
    """.split()  # noqa: SIM905
)

# The classes whose configuration and defaults of normalization override tokenizer.json.
_CLASSES_OF_BERTS_KIN = frozenset(
    """
    BertTokenizer ConvBertTokenizer DPRQuestionEncoderTokenizer DistilBertTokenizer ElectraTokenizer
    FunnelTokenizer LayoutLMTokenizer LayoutLMv2Tokenizer LxmertTokenizer MPNetTokenizer MobileBertTokenizer
    RealmTokenizer RetriBertTokenizer RoFormerTokenizer SplinterTokenizer SqueezeBertTokenizer
    """.split()  # noqa: SIM905
)

_CLASSES_WITHOUT_CHINESE_OPTION = frozenset(
    {"LayoutLMv2Tokenizer", "MPNetTokenizer", "RoFormerTokenizer", "SplinterTokenizer"}
)

# Options of BERT's normalizer, by their names in tokenizer.json: their names in tokenizer_config.json, and
# the classes' defaults if they are missing or null. Accents are then stripped if texts are lowercased.
_NORMALIZER_OPTIONS = {
    "lowercase": ("do_lower_case", True),
    "strip_accents": ("strip_accents", None),
    "handle_chinese_chars": ("tokenize_chinese_chars", True),
}


# Files of 250,000 tokens have 10 to 40 MB.
MAX_TOKENIZER_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The texts of `tokenizer.json` and `tokenizer_config.json` ("{}" if there is none)."""

    tokenizer_json: str
    config_json: str = "{}"

    @classmethod
    def read(cls, folder: Path) -> "TokenizerFiles":
        """Read both files.

        Raises: SourceError naming the file that is missing or not JSON.
        """
        path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
        if not path.is_file():
            raise SourceError(
                f"{path} is missing; a tokenizer without it is converted once with "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        config = read_json(config_path) if config_path.is_file() else {}
        return cls(
            read_text(path, MAX_TOKENIZER_BYTES), json.dumps(config, ensure_ascii=False, sort_keys=True)
        )

    def write(self, folder: Path) -> None:
        """Write both files."""
        (folder / "tokenizer.json").write_text(self.tokenizer_json, encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(self.config_json, encoding="utf-8")

    @property
    def config(self) -> dict[str, Any]:
        """Parse `tokenizer_config.json`."""
        parsed: dict[str, Any] = json.loads(self.config_json)
        return parsed

    def without_configuration(self) -> "TokenizerFiles":
        """Keep only tokenizer.json, for a model whose tokenizer has no class of transformers."""
        return replace(self, config_json=json.dumps({"tokenizer_class": "Tokenizer"}))

    def configured(self) -> tuple[dict[str, Any], str]:
        """Give tokenizer.json, parsed and as text, with BERT's normalizer of the configuration or its class.

        In transformers they override tokenizer.json. A configuration without a class is read as BERT's.
        Parsing takes up to 0.3 s for large vocabularies.
        """
        parsed: dict[str, Any] = json.loads(self.tokenizer_json)
        config = self.config
        normalizer = parsed.get("normalizer") or {}
        if normalizer.get("type") != "BertNormalizer" or self._class() not in {None, *_CLASSES_OF_BERTS_KIN}:
            return parsed, self.tokenizer_json
        configured = dict(normalizer)
        for name, (key, default) in _NORMALIZER_OPTIONS.items():
            heard = self._saved_by_5 or self._class() not in _CLASSES_WITHOUT_CHINESE_OPTION
            if name != "handle_chinese_chars" or heard:
                configured[name] = default if config.get(key) is None else config[key]
        if configured == normalizer:  # the usual case; a vocabulary takes longer to write than to read
            return parsed, self.tokenizer_json
        parsed["normalizer"] = configured
        return parsed, json.dumps(parsed)

    @property
    def _saved_by_5(self) -> bool:
        return "backend" in self.config  # earlier releases do not write this key

    def _class(self, otherwise: str | None = None) -> str | None:
        """Name transformers' class of this tokenizer, without "Fast"."""
        name = self.config.get("tokenizer_class") or otherwise
        return name.removesuffix("Fast") if isinstance(name, str) else None

    def gives_token_types(self, model_type: str, class_in_model_config: str | None) -> bool:
        """Whether transformers passes this tokenizer's token types to the model.

        tokenizer_config.json says so, or names the tokenizer's class, or config.json does; else the class is
        that of the model's type. Most saved tokenizers rely on their class's default.
        """
        config = self.config
        inputs = config.get("model_input_names")
        if isinstance(inputs, list):
            return "token_type_ids" in inputs
        name = self._class(class_in_model_config)
        if name is not None and self._saved_by_5:
            return name in _CLASSES_WITH_TOKEN_TYPES_SINCE_5
        if name is not None:
            return name not in _CLASSES_WITHOUT_TOKEN_TYPES
        return model_type not in _MODELS_WITHOUT_TOKEN_TYPES


# Tokens of one role.
Run = tuple[IntArray, Role]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The special tokens around one text (two parts) or a pair (three): part, text, part, text, part.

    Shapes: parts, arrays (3, special tokens there): their ids, roles and token types. `text_types` has one
    token type per text.
    """

    parts: tuple[IntArray, ...]
    text_types: tuple[int, ...]

    @classmethod
    def without_special_tokens(cls) -> "Frame":
        """Make a frame without special tokens for one text."""
        nothing = np.empty((3, 0), dtype=np.int32)
        return cls((nothing, nothing), (0,))

    @property
    def special_tokens(self) -> int:
        """Count the positions of special tokens."""
        return sum(part.shape[1] for part in self.parts)

    def with_one_separator(self) -> "Frame":
        """Keep one of several equal tokens between two texts: RoBERTa-like models have two there."""
        first, between, *rest = self.parts
        if len(self.parts) < 3 or len(set(between[0].tolist())) != 1:
            return self
        return replace(self, parts=(first, between[:, :1], *rest))

    def around(self, *texts: Sequence[Run]) -> EncoderInput:
        """Put the special tokens around texts, each given as consecutive runs."""
        first, *others = self.parts
        pieces: list[tuple[IntArray, IntArray | int, IntArray | int]] = [tuple(first)]
        for runs, kind, part in zip(texts, self.text_types, others, strict=True):
            # A plain number: numpy looks up missing attributes of an enum's member, which is slow.
            pieces += [(ids, int(role), kind) for ids, role in runs]
            pieces.append(tuple(part))
        # Into one array: every call of numpy costs time, for which a small request waits.
        framed = np.empty((3, sum(len(ids) for ids, *_ in pieces)), dtype=np.int32)
        start = 0
        for ids, roles, kinds in pieces:
            end = start + len(ids)
            framed[0, start:end], framed[1, start:end], framed[2, start:end] = ids, roles, kinds
            start = end
        return EncoderInput(*framed)


def _frame(encoding: Encoding, texts: int) -> Frame:
    """Find the frame in an encoded example: the tokens that belong to no text."""
    parts: list[list[tuple[int, int, int]]] = [[] for _ in range(texts + 1)]
    types: dict[int, int] = {}
    for token, kind, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if text is None:
            parts[len(types)].append((token, Role.SPECIAL, kind))
        else:
            types[text] = kind
    if list(types) != list(range(texts)):
        raise SourceError("tokenizer.json: the tokenizer finds no token in the text 'a'")
    arrays = (np.array(part, dtype=np.int32).reshape(-1, 3).T for part in parts)
    return Frame(tuple(arrays), tuple(types.values()))


# Long texts are tokenized in pieces of at least this many characters, which take about 10 ms each.
PIECE_CHARACTERS = 16_384

# If only a text's beginning is kept, pieces are shorter: a little longer than the tokens to keep; most
# languages have one token for every 3 to 6 characters.
CHARACTERS_PER_TOKEN = 8
FEWEST_CHARACTERS = 1_024


def finished(steps: Generator[int, None, TokenizedText]) -> TokenizedText:
    """Run all steps of reading a text. Raises: exceptions of the steps."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            read: TokenizedText = done.value
            return read


class TextTokenizer:
    """A tokenizer opened from its files; several threads may share it.

    `single` and `pair` are its frames of one text and of two. A special token's name inside a text ("[SEP]")
    is read as that token, as in transformers.
    Raises: SourceError if the files hold no usable tokenizer.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self.files = files
        try:
            parsed, text = files.configured()
            self.tokenizer = Tokenizer.from_str(text)
        except RecursionError:
            raise SourceError(f"tokenizer.json cannot be read: {TOO_DEEP}") from None
        except Exception as error:  # the library raises bare Exception
            raise SourceError(f"tokenizer.json cannot be read: {error}") from error
        # The file may enable them.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        encode = self.tokenizer.encode
        self.single, self.pair = _frame(encode("a"), texts=1), _frame(encode("a", "a"), texts=2)
        self._cut = cut_pattern(parsed)
        self._inside = reading_on(self.tokenizer, parsed)
        self._file_pad_id = (parsed.get("padding") or {}).get("pad_id")
        self._before = self._letter_before()
        self._words = WordTable(self._at_once) if reads_words_alone(parsed) else None

    @cached_property
    def digest(self) -> str:
        """Hash everything that tokens depend on, without the file's truncation and padding.

        The first call takes up to 0.1 s, during which no other Python thread runs.
        """
        parsed, _ = self.files.configured()
        kept = {name: value for name, value in parsed.items() if name not in ("truncation", "padding")}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def pad_id(self, fallback: int | None) -> int:
        """Find the padding token: the configuration's, the file's, or the backbone's, in this order.

        Raises: SourceError if none is named.
        """
        content = self.special_name("pad_token")
        for pad_id in (content and self.tokenizer.token_to_id(content), self._file_pad_id, fallback):
            if isinstance(pad_id, int):
                return pad_id
        raise SourceError("tokenizer_config.json names no pad_token, and no other file gives a padding id")

    def special_name(self, key: str) -> str | None:
        """Read a special token's name in tokenizer_config.json ("mask_token"); None if it names none."""
        token = self.files.config.get(key)
        content = token.get("content") if isinstance(token, Mapping) else token
        return content if isinstance(content, str) else None

    @property
    def splits_at_spaces(self) -> bool:
        """Whether no token joins a character and the white space behind it."""
        return self._cut is not None

    def ids(self, text: str) -> IntArray:
        """Tokenize a short text without special tokens, (T,)."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def read(self, text: str, limit: int, *, count_tokens: bool = False, spaces: str = "") -> TokenizedText:
        """Read a text's first `limit` tokens; with `count_tokens`, tokenize the rest to count it.

        `spaces` are the spaces before the text in its prompt, which belong to its first token; they are
        ignored if the text is empty.
        Raises: ValueError if the part that is read has a lone surrogate.
        """
        return finished(self.steps(text, limit, count_tokens=count_tokens, spaces=spaces))

    def steps(
        self, text: str, limit: int, *, count_tokens: bool = False, spaces: str = ""
    ) -> Generator[int, None, TokenizedText]:
        """Read as `read` does, a piece of bounded size at each step; yield the number of characters read.

        Raises: ValueError if the part that is read has a lone surrogate.
        """
        kept: list[Tokens] = []
        total, first_cut = 0, None  # the start of the first token that is not kept
        lead = len(spaces) if text else 0
        text = spaces[:lead] + text
        usual = min(PIECE_CHARACTERS, max(FEWEST_CHARACTERS, limit * CHARACTERS_PER_TOKEN))
        size = PIECE_CHARACTERS if count_tokens else usual
        start = 0
        while start < len(text) and (first_cut is None or count_tokens):
            if start:
                yield start
            piece = next_piece(text, start, self._cut, size, WINDOW)
            if piece.is_whole and first_cut is not None:
                total += self._count(text, start, piece.end)
                start = piece.end
                continue
            done_up_to = start
            steps = self._whole(text, start, piece.end) if piece.is_whole else self._stretch(text, start)
            while True:
                try:
                    tokens = next(steps)
                except StopIteration as done:
                    start = done.value
                    break
                room = limit - total
                total += len(tokens)
                if first_cut is None:
                    kept.append(tokens[:room])
                    first_cut = int(tokens.starts[room]) if len(tokens) > room else None
                if first_cut is not None and not count_tokens:
                    break
                if not piece.is_whole:
                    done_up_to = max(done_up_to, int(tokens.ends[-1]) if len(tokens) else start)
                    yield done_up_to
        read = joined(kept)
        starts, ends = read.starts, read.ends
        if lead:
            starts, ends = np.maximum(starts - lead, 0), np.maximum(ends - lead, 0)
        return TokenizedText(
            ids=read.ids,
            starts=starts,
            ends=ends,
            characters_cut=0 if first_cut is None else len(text) - first_cut,
            total_tokens=total if count_tokens or first_cut is None else None,
        )

    def _count(self, text: str, start: int, end: int) -> int:
        if self._words is not None:
            return len(self._words.read(text[start:end], start))
        before = self._before if start else 0
        piece = ("a" if before else "") + text[start:end]
        return len(self._encode(self.tokenizer, piece, with_offsets=False)) - before

    def _at_once(self, text: str) -> Tokens:
        return Tokens.of(self._encode(self.tokenizer, text, with_offsets=True), 0)

    def _whole(self, text: str, start: int, end: int) -> Generator[Tokens, None, int]:
        """Tokenize a piece at once; a generator with the interface of `Stretch.read`."""
        if self._words is not None:
            yield self._words.read(text[start:end], start)
        else:
            yield self._window(text, 0, start, end).tokens
        return end

    def _stretch(self, text: str, start: int) -> Generator[Tokens, None, int]:
        """Tokenize a piece up to the next place to cut, at any distance."""
        return Stretch(
            lambda way, begin, end: self._window(text, way, begin, end),
            ways=2 if self._inside is None else 3,
            find_cut=lambda begin, end: find_cut(text, begin, end, self._cut),
            length=len(text),
        ).read(start)

    def _window(self, text: str, way: int, start: int, end: int) -> TokenizedWindow:
        """Tokenize a part of a text as a `stretches.Encode`; way 2 inserts nothing before the first word."""
        before = self._before if start and way == 0 else 0
        tokenizer = self._inside if way == 2 and self._inside is not None else self.tokenizer
        letter = "a" if before else ""
        encoding = self._encode(tokenizer, letter + text[start:end], with_offsets=True)
        return TokenizedWindow(
            Tokens.of(encoding, start - len(letter), before),
            lambda token: encoding.token_to_word(token + before),
        )

    def _letter_before(self) -> int:
        """Count the tokens of a letter put before later pieces, to remove them again; usually 0.

        Spans of RoBERTa-like tokenizers leave out the space before a word, except at the beginning of a text,
        and some tokenizers put a space before each text. The letter does not join others: a piece begins with
        white space.
        """
        alone = Tokens.of(self._encode(self.tokenizer, "a", with_offsets=True), 0)
        for piece in (" a", "\na", "\n"):
            if find_cut(f"a{piece}", 0, 2, self._cut) == 1:
                behind = Tokens.of(
                    self._encode(self.tokenizer, f"a{piece}", with_offsets=True), -1, len(alone)
                )
                if behind != Tokens.of(self._encode(self.tokenizer, piece, with_offsets=True), 0):
                    return len(alone)
        return 0

    def count(self, text: str) -> int:
        """Count a text's tokens.

        Raises: ValueError if the text has a lone surrogate.
        """
        total = self.read(text, 0, count_tokens=True).total_tokens
        assert total is not None, "counted"
        return total

    def _encode(self, tokenizer: Tokenizer, piece: str, *, with_offsets: bool) -> Encoding:
        """Tokenize a piece, faster without offsets.

        Raises: ValueError if it has a lone surrogate.
        """
        # Batches of one: they let other threads run, encode() does not.
        encode = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
        try:
            (encoding,) = encode([piece], add_special_tokens=False)
        except TypeError:
            lone = next(character for character in piece if "\ud800" <= character <= "\udfff")
            raise ValueError(f"text is not valid Unicode: lone surrogate U+{ord(lone):04X}") from None
        return encoding
