"""A tokenizer: its files, the special tokens it puts around texts, and its tokens for texts of any length."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from farrank_rankers.errors import ReadingStopped, SourceError
from farrank_rankers.json_values import read_json, read_text
from farrank_rankers.tokens import EncoderInput, IntArray, Role, TokenizedText

# Which token types models are given, and how texts are normalized, follows the release of transformers that
# saved the tokenizer, as the model was trained with it, and not the one that is installed.

# The tokenizer classes of transformers that give models no token_type_ids, by their names without "Fast".
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

# Those that give them in transformers 5.
_CLASSES_WITH_TOKEN_TYPES_SINCE_5 = frozenset(
    """
    BertTokenizer DPRContextEncoderTokenizer DPRQuestionEncoderTokenizer DPRReaderTokenizer DebertaTokenizer
    DebertaV2Tokenizer FNetTokenizer LayoutLMv2Tokenizer MarkupLMTokenizer
    """.split()  # noqa: SIM905
)

# The types of models whose tokenizer is of such a class, among those that can tell token types apart.
_MODELS_WITHOUT_TOKEN_TYPES = frozenset(
    """
    big_bird camembert data2vec-text ibert layoutlmv3 lilt longformer mega mra retribert roberta
    roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod
    """.split()  # noqa: SIM905
)

# The classes whose configuration and defaults say how texts are normalized, whatever tokenizer.json says.
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

# Options of BERT's normalizer, by their names in tokenizer.json: how tokenizer_config.json calls them, and
# what the classes take where it is silent or says null. Accents are then stripped where texts are lowercased.
_NORMALIZER_OPTIONS = {
    "lowercase": ("do_lower_case", True),
    "strip_accents": ("strip_accents", None),
    "handle_chinese_chars": ("tokenize_chinese_chars", True),
}


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The texts of `tokenizer.json` and `tokenizer_config.json` ("{}" where there is none)."""

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
        return cls(read_text(path), json.dumps(config, ensure_ascii=False, sort_keys=True))

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
        """Keep tokenizer.json alone, for a model around whose tokenizer transformers puts no class."""
        return replace(self, config_json=json.dumps({"tokenizer_class": "Tokenizer"}))

    def as_configured(self) -> str:
        """Give tokenizer.json, its BERT normalizer as the configuration or its class has it.

        In transformers they win. A configuration that names no class is read as BERT's.
        """
        parsed, config = json.loads(self.tokenizer_json), self.config
        normalizer = parsed.get("normalizer") or {}
        if normalizer.get("type") != "BertNormalizer" or self._class() not in {None, *_CLASSES_OF_BERTS_KIN}:
            return self.tokenizer_json
        configured = dict(normalizer)
        for name, (key, default) in _NORMALIZER_OPTIONS.items():
            heard = self._saved_by_5 or self._class() not in _CLASSES_WITHOUT_CHINESE_OPTION
            if name != "handle_chinese_chars" or heard:
                configured[name] = default if config.get(key) is None else config[key]
        if configured == normalizer:  # as nearly always; a vocabulary takes longer to write than to read
            return self.tokenizer_json
        return json.dumps(parsed | {"normalizer": configured})

    @property
    def _saved_by_5(self) -> bool:
        return "backend" in self.config  # earlier releases write no such key

    def _class(self, otherwise: str | None = None) -> str | None:
        """Name transformers' class of this tokenizer, without "Fast"."""
        name = self.config.get("tokenizer_class") or otherwise
        return name.removesuffix("Fast") if isinstance(name, str) else None

    def gives_token_types(self, model_type: str, class_in_model_config: str | None) -> bool:
        """Tell whether transformers hands this tokenizer's token types on to the model.

        tokenizer_config.json says so, or names the tokenizer's class, or config.json does; else the class is
        that of the model's type. Most saved tokenizers say nothing and rely on their class's default.
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
    token type a text.
    """

    parts: tuple[IntArray, ...]
    text_types: tuple[int, ...]

    @classmethod
    def without_special_tokens(cls) -> "Frame":
        """Put nothing around one text."""
        nothing = np.empty((3, 0), dtype=np.int32)
        return cls((nothing, nothing), (0,))

    @property
    def special_tokens(self) -> int:
        """Count the positions that special tokens take."""
        return sum(part.shape[1] for part in self.parts)

    def with_one_separator(self) -> "Frame":
        """Keep one of several equal tokens between two texts: RoBERTa's kin put two there."""
        first, between, *rest = self.parts
        if len(self.parts) < 3 or len(set(between[0].tolist())) != 1:
            return self
        return replace(self, parts=(first, between[:, :1], *rest))

    def around(self, *texts: Sequence[Run]) -> EncoderInput:
        """Put the special tokens around texts, each of them runs that follow each other."""
        first, *others = self.parts
        pieces: list[tuple[IntArray, IntArray | int, IntArray | int]] = [tuple(first)]
        for runs, kind, part in zip(texts, self.text_types, others, strict=True):
            # A plain number: numpy asks an enum's member for what it has not, and is told so slowly.
            pieces += [(ids, int(role), kind) for ids, role in runs]
            pieces.append(tuple(part))
        # Into one array: every call of numpy costs, and a small request waits for it.
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


# Long texts are tokenized in pieces of at least so many characters, which takes some 20 ms each.
PIECE_CHARACTERS = 32_768

# Where only a text's beginning is kept, its pieces are shorter: a little longer than the tokens that are to
# be kept, of which most languages have one for every 3 to 6 characters.
CHARACTERS_PER_TOKEN = 8
FEWEST_CHARACTERS = 1_024

# How Qwen2 and 3, and Llama 3, split words: a space begins a match, and none goes on over it.
_SPACES_BEGIN = frozenset(
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for number in (r"\p{N}", r"\p{N}{1,3}")
)

# The matched character begins the next piece, so that a run of white space is never torn and byte-level
# tokenizers find the space that belongs to the next word. Control characters that Python counts as white
# space are left out: some normalizers drop them and join the words on both sides.
_BEFORE_WHITE_SPACE = re.compile(r"(?<=\S)[ \t\n\r]")
_BEFORE_SPACE = re.compile(r"(?<=\S) ")


def cut_pattern(tokenizer_json: str) -> re.Pattern[str] | None:
    """Choose where a tokenizer's texts may be cut, from how it splits words: None is nowhere.

    Only pre-tokenizers known to end a word at white space allow a cut; a tokenizer that merges across words
    (as some BPE models without a pre-tokenizer do) reads a text whole, however long.
    """
    step: dict[str, Any] | None = json.loads(tokenizer_json).get("pre_tokenizer")
    while step and step["type"] == "Sequence":
        step = step["pretokenizers"][0]
    match step:
        case {"type": "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit"}:
            return _BEFORE_WHITE_SPACE
        case {"type": "ByteLevel", "use_regex": True}:
            return _BEFORE_WHITE_SPACE
        case {"type": "Metaspace", "split": True}:
            return _BEFORE_SPACE
        case {"type": "Split", "pattern": {"Regex": regex}, "invert": False} if regex in _SPACES_BEGIN:
            return _BEFORE_SPACE
        case _:
            return None


def text_pieces(text: str, pattern: re.Pattern[str] | None, characters: int) -> Iterator[tuple[int, str]]:
    """Yield (offset in characters, piece): the pieces have exactly the tokens of the text, and none is empty.

    All but the last have at least `characters`; a stretch without a place to cut makes its piece longer.
    """
    start = 0
    while start < len(text):
        found = pattern.search(text, start + characters) if pattern else None
        end = found.start() if found else len(text)
        yield start, text[start:end]
        start = end


class TextTokenizer:
    """A tokenizer opened from its files; several threads may share it.

    `single` and `pair` are the frames it puts around one text and around two. A special token's name inside a
    text ("[SEP]") is read as that token, as transformers does.
    Raises: SourceError if the files hold no usable tokenizer.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self.files = files
        try:
            self.tokenizer = Tokenizer.from_str(files.as_configured())
        except Exception as error:  # the library raises bare Exception
            raise SourceError(f"tokenizer.json cannot be read: {error}") from error
        # What its file may ask for.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        encode = self.tokenizer.encode
        self.single, self.pair = _frame(encode("a"), texts=1), _frame(encode("a", "a"), texts=2)
        self._cut = cut_pattern(files.tokenizer_json)
        self._before = self._letter_before()

    def pad_id(self, fallback: int | None) -> int:
        """Find the padding token: the configuration's, the file's, or the backbone's, in this order.

        Raises: SourceError if none is named.
        """
        token = self.files.config.get("pad_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        padding = json.loads(self.files.tokenizer_json).get("padding") or {}
        for pad_id in (content and self.tokenizer.token_to_id(content), padding.get("pad_id"), fallback):
            if isinstance(pad_id, int):
                return pad_id
        raise SourceError("tokenizer_config.json names no pad_token, and no other file gives a padding id")

    def ids(self, text: str) -> IntArray:
        """Tokenize a short text without special tokens, (T,)."""
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def read(
        self,
        text: str,
        limit: int,
        should_stop: Callable[[], bool] | None = None,
        *,
        count_tokens: bool = False,
        spaces: str = "",
    ) -> TokenizedText:
        """Keep a text's first `limit` tokens; with `count_tokens`, tokenize the rest to count it.

        A long text is read in pieces, and `should_stop` is asked between two of them. `spaces` are those that
        stand before the text in its prompt: they belong to its first token. Before no text they are nothing.
        Raises: ReadingStopped if it says yes; ValueError if what is read of the text has a lone surrogate.
        """
        ids: list[int] = []
        spans: list[IntArray] = [np.empty((0, 2), dtype=np.int32)]
        total, first_cut = 0, None  # where the first token that is not kept starts
        lead = len(spaces) if text else 0
        text = spaces[:lead] + text
        usual = min(PIECE_CHARACTERS, max(FEWEST_CHARACTERS, limit * CHARACTERS_PER_TOKEN))
        for offset, piece in text_pieces(text, self._cut, PIECE_CHARACTERS if count_tokens else usual):
            if offset and should_stop is not None and should_stop():
                raise ReadingStopped(f"stopped after {offset} of {len(text)} characters")
            room = limit - total
            if first_cut is not None:
                total += len(self._encode(piece, with_offsets=False))
            else:
                before = self._before if offset else 0
                encoding = self._encode("a" * before + piece, with_offsets=True)
                total += len(encoding) - before
                # Of pairs of numbers numpy makes an array sooner where they come one after the other.
                flat = np.fromiter(chain.from_iterable(encoding.offsets), np.int32, 2 * len(encoding))
                offsets = flat.reshape(-1, 2)[before:] + (offset - before)
                ids += encoding.ids[before : before + room]
                spans.append(offsets[:room])
                first_cut = int(offsets[room, 0]) if len(offsets) > room else None
            if first_cut is not None and not count_tokens:
                break
        joined = np.concatenate(spans)
        if lead:
            joined = np.maximum(joined - lead, 0)
        return TokenizedText(
            ids=np.array(ids, dtype=np.int32),
            starts=np.ascontiguousarray(joined[:, 0]),
            ends=np.ascontiguousarray(joined[:, 1]),
            characters_cut=0 if first_cut is None else len(text) - first_cut,
            total_tokens=total if count_tokens or first_cut is None else None,
        )

    def _letter_before(self) -> int:
        """Say how many letters must stand before a later piece so that its spans are those of the whole text.

        Spans of RoBERTa's kin leave out the space before a word, but for the space that begins a text. The
        letter is one token and joins no other: a piece begins with white space.
        """
        first, second = (self.tokenizer.encode(each, add_special_tokens=False) for each in (" a", "a a"))
        return int(first.offsets[0][0] == 0 and second.offsets[-1][0] == 2 and len(second) == 2)

    def count(self, text: str) -> int:
        """Count a text's tokens.

        Raises: ValueError if the text has a lone surrogate.
        """
        pieces = text_pieces(text, self._cut, PIECE_CHARACTERS)
        return sum(len(self._encode(piece, with_offsets=False)) for _, piece in pieces)

    def _encode(self, piece: str, *, with_offsets: bool) -> Encoding:
        """Tokenize a piece, faster without offsets.

        Raises: ValueError if it has a lone surrogate.
        """
        # Batches of one: they let other threads run, encode() does not.
        encode = self.tokenizer.encode_batch if with_offsets else self.tokenizer.encode_batch_fast
        try:
            (encoding,) = encode([piece], add_special_tokens=False)
        except TypeError:
            lone = next(character for character in piece if "\ud800" <= character <= "\udfff")
            raise ValueError(f"text is not valid Unicode: lone surrogate U+{ord(lone):04X}") from None
        return encoding
