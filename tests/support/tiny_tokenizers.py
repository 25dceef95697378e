"""Real tokenizers of every kind over a few words, saved as transformers saves them."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

WORDS = (
    "the long document ranks chunks of passages by a query and its tokens while windows slide over text "
    "hello world naïve café straße command line arguments parse search engine neural model score"
)


# WordPiece's and Unigram's trainers choose and number pieces in the order of a hash table, differently in
# every run, and with the numbers differ the vectors of a random model. Their vocabularies are written out.


def wordpiece() -> Tokenizer:
    """BERT's pipeline over the beginnings of a few words, and letters to go on with."""
    normalizer = normalizers.BertNormalizer(lowercase=True)
    words = normalizer.normalize_str(WORDS).split()
    beginnings = sorted({word[:length] for word in words for length in range(1, len(word) + 1)})
    # Special tokens away from BERT's usual ids: nothing may rely on those.
    special = ["[UNK]", "[MASK]", "[SEP]", "[PAD]", "[CLS]"]
    pieces = [*special, *beginnings, *(f"##{letter}" for letter in sorted(set("".join(words))))]
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
    # Merges depend on the counts and the alphabet's order alone: the same in every run.
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([WORDS], trainer)
    # By position: releases of tokenizers name these parameters differently.
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
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


def sentence_starts() -> Tokenizer:
    """Llama's way: a token before each text, none behind, and none for padding."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def metaspace() -> Tokenizer:
    """XLM-R's and T5's way: words are marked by ▁ in front, pieces come from a unigram model."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    words = [f"▁{word}" for word in WORDS.split()]
    pieces = sorted({*"".join(words), *words, *(word[-3:] for word in words)})
    # A piece costs 1 and a little more: the fewest pieces win, and no two ways to cut a word cost the same.
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


def save_tokenizer(
    tokenizer: Tokenizer, folder: Path, model_type: str | None = None
) -> PreTrainedTokenizerFast:
    """Write a tokenizer's files as transformers does, by the class that it has for a model's type."""
    bert = tokenizer.token_to_id("[CLS]") is not None
    tokens = ("[CLS]", "[SEP]", "[PAD]", "[UNK]") if bert else ("<s>", "</s>", "<pad>", "<unk>")
    names = ("cls_token", "sep_token", "pad_token", "unk_token")
    # ModernBERT's tokenizer is of transformers' general class, whose default has token types.
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    kind = tokenizer_class_from_name(TOKENIZER_MAPPING_NAMES[model_type][1]) if model_type else None
    wrapped = (kind or PreTrainedTokenizerFast)(
        tokenizer_object=tokenizer,
        bos_token=tokens[0],
        eos_token=tokens[1],
        **(inputs if model_type == "modernbert" else {}),
        **dict(zip(names, tokens, strict=True)),
    )
    wrapped.save_pretrained(folder)
    return wrapped
