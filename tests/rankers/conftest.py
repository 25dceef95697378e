"""Tiny backbones with real tokenizers, made by the tests: nothing is downloaded."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
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
from support.tiny_tokenizers import (
    answering,
    byte_level,
    byte_pairs,
    fast_class,
    metaspace,
    pieces_of,
    save_tokenizer,
    sentence_starts,
    wordpiece,
)

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    # Wide enough that scores differ by far more than the tolerances (standard deviations of 0.1 to 1), but
    # not so wide that rounding errors grow from layer to layer: in fp32 they stay well below 1e-5.
    "initializer_range": 0.25,
}

MakeModel = Callable[..., Path]
MakeBackbone = Callable[..., Path]

# The distinctive fields of each architecture, in addition to TINY.
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
    # As answerdotai/ModernBERT-base, with a narrower window; the last layer is global, as there.
    "modernbert": {"num_hidden_layers": 4, "local_attention": 16},
    "llama": {"num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None},
    # The heads' width is not the hidden size's share, as in published models. Normed or scaled weights can be
    # narrower.
    "qwen2": {"num_key_value_heads": 2, "eos_token_id": 2, "initializer_range": 0.15},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "eos_token_id": 2, "initializer_range": 0.15},
    "gemma": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "initializer_range": 0.1,
    },
    "gemma2": {
        "initializer_range": 0.1,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 24,
        "attn_logit_softcapping": 4.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
}
DECODERS = ("llama", "qwen2", "qwen3", "gemma", "gemma2")
# The architectures whose classifiers need these fields, too.
SHAPED = {name: ARCHITECTURES[name] for name in ("modernbert", "qwen2", "qwen3", "gemma", "gemma2")}
WORDPIECE = ("bert", "electra", "distilbert", "deberta-v2", "big_bird", "jina", "mosaic")

# The fields of config.json in which Farrank's own backbones differ from BERT.
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


def tokenizer_of(architecture: str) -> Tokenizer:
    """Return the kind of tokenizer that an architecture was published with."""
    if architecture == "modernbert":
        return byte_pairs()
    if pieces_of(fast_class(architecture)) == "Unigram":  # DeBERTa's and BigBird's, in transformers 5
        return metaspace()
    return wordpiece() if architecture in WORDPIECE else byte_level()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Make tests draw the same numbers in every run, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """Write a random sequence-classification model of any architecture as a Hugging Face folder."""

    def make(model_type: str = "bert", labels: int = 1, positions: int = 128, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(model_type)
        tokenizer = tokenizer_of(model_type)
        saved = save_tokenizer(tokenizer, folder, model_type)
        pad = tokenizer.token_to_id("[PAD]") or tokenizer.token_to_id("<pad>")
        config = AutoConfig.for_model(
            model_type,
            **TINY
            | {
                "vocab_size": len(saved),
                "max_position_embeddings": positions,
                "pad_token_id": pad,
                "num_labels": labels,
            }
            | SHAPED.get(model_type, {})
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
    """Write a random base model as a Hugging Face folder. Farrank's own architectures have no weights."""

    def make(architecture: str, positions: int = 2048, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(architecture)
        if architecture in DECODERS:
            tokenizer = sentence_starts()
            saved = PreTrainedTokenizerFast(
                tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
            )
            saved.save_pretrained(folder)
        else:
            tokenizer = tokenizer_of(architecture)
            saved = save_tokenizer(tokenizer, folder, "bert" if architecture in OWN else architecture)
        pad = tokenizer.token_to_id("[PAD]") or tokenizer.token_to_id("<pad>")
        values = TINY | {"vocab_size": len(saved), "pad_token_id": pad}
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
    """One tokenizer of each kind that a backbone may have."""
    opened = {}
    for build in (wordpiece, byte_level, byte_pairs, metaspace, answering):
        folder = tmp_path_factory.mktemp(build.__name__)
        save_tokenizer(build(), folder)
        opened[build.__name__] = TextTokenizer(TokenizerFiles.read(folder))
    return opened


@pytest.fixture
def save_and_open(tmp_path: Path) -> Callable[[Ranker, str, Sequence[str]], Ranker]:
    """Save a ranker as an artifact and open it. It is the same, and its scores are identical to the bit."""

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
