"""Real tokenizers of every kind over a few words, in transformers' format."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

WORDS = (
    "the long document ranks chunks of passages by a query and its tokens while windows slide over text "
    "hello world naïve café straße command line arguments parse search engine neural model score"
)


# WordPiece's and Unigram's trainers choose and number pieces in the order of a hash table, which differs
# between runs. The vectors of a random model depend on the numbers. Therefore their vocabularies are written
# out.


def wordpiece(more: Sequence[str] = ()) -> Tokenizer:
    """BERT's pipeline over the beginnings of a few words, letters as continuations, and `more` pieces."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    words = normalizer.normalize_str(WORDS).split()
    beginnings = sorted({word[:length] for word in words for length in range(1, len(word) + 1)})
    # Special tokens do not have BERT's usual ids, because no code may rely on those.
    special = ["[UNK]", "[MASK]", "[SEP]", "[PAD]", "[CLS]"]
    pieces = [*special, *beginnings, *(f"##{letter}" for letter in sorted(set("".join(words)))), *more]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def byte_level() -> Tokenizer:
    """RoBERTa's pipeline."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Merges depend only on the counts and the alphabet's order, so they are the same in every run.
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([WORDS], trainer)
    # Positional, because releases of tokenizers name these parameters differently.
    ends: list[Any] = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends)
    return tokenizer


def byte_pairs() -> Tokenizer:
    """ModernBERT's pipeline: composed letters, bytes, runs of spaces as tokens, BERT's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([WORDS], trainer)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(8, 1, -1)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return tokenizer


# From Qwen2's and Qwen3's tokenizer.json.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# Answers, and the text of templates around texts. A question mark and the line's end are one token, as in the
# originals.
ANSWERS = "yes no Yes No yes no Yes No query document? query document.\n what?\n why?\n how.\n A: B: query: "


def answering() -> Tokenizer:
    """Qwen's pipeline: words begin with their space, no tokens around a text, marks for a chat's turns."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([f"{WORDS} {ANSWERS}\nyes\nno\n?\n?\n?\n"], trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unsplit() -> Tokenizer:
    """Gemma's pipeline: spaces are letters, words are not split, a token before each text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    # Merges are learnt word by word, as in a vocabulary whose pieces have spaces only at their start.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special)
    tokenizer.train_from_iterator([f"{WORDS} {ANSWERS} Yes\nNo\nYes"], trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A",
        pair="<bos> $A <bos> $B",
        special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))],
    )
    return tokenizer


def ending(tokenizer: Tokenizer, start: str, end: str) -> Tokenizer:
    """Put tokens around a text, as the published tokenizers do."""
    single = f"{start} $A {end}".strip()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B:1 {end}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (start, end) if name],
    )
    return tokenizer


def sentence_starts() -> Tokenizer:
    """Llama's pipeline: a token before each text, none after it, and none for padding."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """The pipeline of XLM-R and T5: ▁ marks the start of words, pieces come from a unigram model."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [f"▁{word}" for word in WORDS.split()]
    pieces = sorted({*"".join(words), *words, *(word[-3:] for word in words)})
    # A piece costs slightly more than 1: the fewest pieces win, and no two segmentations of a word cost the
    # same.
    scores = [-1 - len(piece) / 100 - number / 10_000 for number, piece in enumerate(pieces)]
    vocabulary = [*((token, 0.0) for token in special), *zip(pieces, scores, strict=True)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=special.index("<unk>")))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return tokenizer


def fast_class_name(model_type: str) -> str | None:
    """Return the name of transformers' fast tokenizer class for a model type. Before 5 it has a slow one."""
    names: str | tuple[str | None, str | None] | None = TOKENIZER_MAPPING_NAMES.get(model_type)
    return names[1] if isinstance(names, tuple) else names


def fast_class(model_type: str) -> Any:
    """Return a model type's class that is made from a `Tokenizer`, or None if transformers has none."""
    name = fast_class_name(model_type)
    kind = tokenizer_class_from_name(name) if name else None
    return kind if kind is not None and issubclass(kind, PreTrainedTokenizerFast) else None


def pieces_of(kind: Any) -> str | None:
    """Return the kind of pieces that a class requires, or None if it takes any, as all do before 5."""
    model = getattr(kind, "model", None)
    return str(model.__name__) if model is not None and "__init__" in vars(kind) else None


# Tokenizers whose pieces suit a class of transformers 5.
OF_PIECES = {None: wordpiece, "WordPiece": wordpiece, "BPE": byte_level, "Unigram": metaspace}


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, model_type: str | None = None
) -> PreTrainedTokenizerFast:
    """Write a tokenizer's files with transformers' class for a model type.

    In transformers 5 most classes take only the pieces: the class itself defines the other steps.
    """
    bert = tokenizer.token_to_id("[CLS]") is not None
    tokens = ("[CLS]", "[SEP]", "[PAD]", "[UNK]") if bert else ("<s>", "</s>", "<pad>", "<unk>")
    names = ("cls_token", "sep_token", "pad_token", "unk_token")
    kind = (fast_class(model_type) if model_type else None) or PreTrainedTokenizerFast
    model = json.loads(tokenizer.to_str())["model"]
    given: dict[str, Any] = {"tokenizer_object": tokenizer}
    if pieces_of(kind) == model["type"]:
        pieces = model["vocab"]
        given = {"vocab": pieces if isinstance(pieces, dict) else [tuple(piece) for piece in pieces]}
        if "merges" in model:
            given["merges"] = [tuple(merge) for merge in model["merges"]]
    if model_type == "modernbert":  # of transformers' general class, whose default before 5 has token types
        given["model_input_names"] = ["input_ids", "attention_mask"]
    wrapped = kind(**given, bos_token=tokens[0], eos_token=tokens[1], **dict(zip(names, tokens, strict=True)))
    wrapped.save_pretrained(folder)
    return wrapped
