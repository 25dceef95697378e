"""Tiny backbones with real tokenizers, made on the spot: nothing is downloaded."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles

WORDS = (
    "the long document ranks chunks of passages by a query and its tokens while windows slide over text "
    "hello world naïve café straße command line arguments parse search engine neural model score"
)

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    # Wide, so that scores differ by far more than the tolerances (standard deviations of 0.1 to 1), but not
    # so wide that rounding errors grow from layer to layer: in fp32 they stay well below 1e-5.
    "initializer_range": 0.25,
}

MakeModel = Callable[..., Path]
MakeBackbone = Callable[..., Path]

# What makes a tiny model of an architecture one of its kind, beside TINY.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {},
    "electra": {"embedding_size": 16},
    "distilbert": {},
    "roberta": {},
    "deberta-v2": {  # as microsoft/deberta-v3-base, with fewer buckets
        "relative_attention": True,
        "position_buckets": 16,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "longformer": {"attention_window": 32},
    "big_bird": {},
    "llama": {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None},
}
WORDPIECE = ("bert", "electra", "distilbert", "deberta-v2", "big_bird", "jina", "mosaic")

# What config.json says of the backbones that are written out here, where it differs from BERT's.
OWN: dict[str, dict[str, Any]] = {
    "jina": {
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
    },
    "mosaic": {
        "architectures": ["BertForMaskedLM"],
        "auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"},
        "alibi_starting_size": 2048,
    },
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A test that draws numbers draws the same in every run, whatever ran before it."""
    torch.manual_seed(0)


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


def save_tokenizer(tokenizer: Tokenizer, folder: Path, **changes: Any) -> PreTrainedTokenizerFast:
    """Write a tokenizer's files the way transformers does."""
    bert = tokenizer.token_to_id("[CLS]") is not None
    names = dict(zip(("cls", "sep", "pad", "unk"), ("[CLS]", "[SEP]", "[PAD]", "[UNK]"), strict=True))
    if not bert:
        names = {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in names.items()}, **changes
    )
    wrapped.save_pretrained(folder)
    return wrapped


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Write a random sequence-classification model of any architecture as a Hugging Face folder."""

    def make(model_type: str = "bert", labels: int = 1, positions: int = 128, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        tokenizer = (
            wordpiece() if model_type in ("bert", "electra", "distilbert", "deberta-v2") else byte_level()
        )
        segments = [] if model_type == "distilbert" else ["token_type_ids"]
        save_tokenizer(tokenizer, folder, model_input_names=["input_ids", "attention_mask", *segments])
        pad = tokenizer.token_to_id("[PAD]") or tokenizer.token_to_id("<pad>")
        config = AutoConfig.for_model(
            model_type,
            **TINY
            | {
                "vocab_size": tokenizer.get_vocab_size(),
                "max_position_embeddings": positions,
                "pad_token_id": pad,
                "num_labels": labels,
            }
            | changes,
        )
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = AutoModelForSequenceClassification.from_config(config).eval()
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def make_backbone(tmp_path_factory: pytest.TempPathFactory) -> MakeBackbone:
    """Write a random base model of any architecture, ours too (without weights), as a Hugging Face folder."""

    def make(architecture: str, positions: int = 2048, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(architecture)
        if architecture == "llama":
            tokenizer = sentence_starts()
            PreTrainedTokenizerFast(
                tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
            ).save_pretrained(folder)
        else:
            tokenizer = wordpiece() if architecture in WORDPIECE else byte_level()
            save_tokenizer(tokenizer, folder)
        pad = tokenizer.token_to_id("[PAD]") or tokenizer.token_to_id("<pad>")
        values = TINY | {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad}
        if architecture in OWN:
            config = AutoConfig.for_model("bert", **values).to_dict() | OWN[architecture] | changes
            (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
            return folder
        values |= {"max_position_embeddings": positions} | ARCHITECTURES[architecture] | changes
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = AutoModel.from_config(AutoConfig.for_model(architecture, **values)).eval()
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def cross_encoder(make_model: MakeModel) -> Path:
    """A BERT with one label and 128 positions."""
    return make_model("bert")


@pytest.fixture(scope="session")
def text_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTokenizer]:
    """One tokenizer of each kind that a backbone may bring."""
    opened = {}
    for build in (wordpiece, byte_level, metaspace):
        folder = tmp_path_factory.mktemp(build.__name__)
        save_tokenizer(build(), folder)
        opened[build.__name__] = TextTokenizer(TokenizerFiles.read(folder))
    return opened


@pytest.fixture
def save_and_open(tmp_path: Path) -> Callable[[Ranker, str, Sequence[str]], Ranker]:
    """Save a ranker as an artifact and open it: it is the same, its scores to the bit."""

    def check(ranker: Ranker, query: str, documents: Sequence[str]) -> Ranker:
        save_ranker(ranker, tmp_path / "artifact")
        opened = open_ranker(tmp_path / "artifact")
        assert opened.spec == ranker.spec == open_reader(tmp_path / "artifact").spec
        assert opened.version == ranker.version
        found, expected = (
            [(item.score, item.chunk_scores) for item in each.score(query, documents)]
            for each in (opened, ranker)
        )
        assert len(found) == len(documents)
        assert found == expected
        return opened

    return check


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Change keys of a JSON file; None removes one."""

    def edit(path: Path, **changes: Any) -> None:
        values = json.loads(path.read_text(encoding="utf-8")) | changes
        kept = {key: value for key, value in values.items() if value is not None}
        path.write_text(json.dumps(kept), encoding="utf-8")

    return edit
