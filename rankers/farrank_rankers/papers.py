"""The models of "Understanding Performance of Long-Document Ranking Models", at full size, without weights.

A backbone's entry is its published `config.json`, as far as that speaks of size and kind. This module is read
without torch.
Source: Boytsov et al., arXiv 2207.01262: its models, Table 6 (parameters) and section 3.1 (limits).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.chunking import Chunking, default_chunking
from farrank_rankers.family import Options, family_named
from farrank_rankers.files.open import default_options
from farrank_rankers.spec import RankerSpec, changed_options

if TYPE_CHECKING:
    from torch import nn

Config = Mapping[str, Any]

_BERT_BASE: Config = {
    "model_type": "bert",
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}

_HUB_CODE = "jinaai/jina-bert-implementation"

BACKBONES: Mapping[str, Config] = {
    "google-bert/bert-base-uncased": {**_BERT_BASE, "architectures": ["BertForMaskedLM"]},
    "cross-encoder/ms-marco-electra-base": {
        **_BERT_BASE,
        "model_type": "electra",
        "architectures": ["ElectraForSequenceClassification"],
        "embedding_size": 768,
    },
    "microsoft/deberta-v3-base": {
        **_BERT_BASE,
        "model_type": "deberta-v2",
        "layer_norm_eps": 1e-7,
        "max_relative_positions": -1,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "position_buckets": 256,
        "relative_attention": True,
        "share_att_key": True,
        "type_vocab_size": 0,
        "vocab_size": 128100,
    },
    "allenai/longformer-base-4096": {
        **_BERT_BASE,
        "model_type": "longformer",
        "attention_window": [512] * 12,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4098,
        "pad_token_id": 1,
        "sep_token_id": 2,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "google/bigbird-roberta-base": {
        **_BERT_BASE,
        "model_type": "big_bird",
        "attention_type": "block_sparse",
        "block_size": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 4096,
        "num_random_blocks": 3,
        "rescale_embeddings": False,
        "sep_token_id": 66,
        "use_bias": True,
        "vocab_size": 50358,
    },
    "jinaai/jina-embeddings-v2-base-en": {
        **_BERT_BASE,
        "architectures": ["JinaBertForMaskedLM"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {"AutoModel": f"{_HUB_CODE}--modeling_bert.JinaBertModel"},
        "feed_forward_type": "geglu",
        "max_position_embeddings": 8192,
        "position_embedding_type": "alibi",
        "vocab_size": 30528,
    },
    "mosaicml/mosaic-bert-base-seqlen-2048": {
        **_BERT_BASE,
        "alibi_starting_size": 2048,
        "architectures": ["BertForMaskedLM"],
        "auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"},
        "vocab_size": 30528,
    },
    "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T": {
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 5632,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 22,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "dwzhu/e5-base-4k": {**_BERT_BASE, "architectures": ["BertModel"], "max_position_embeddings": 4096},
}


# The names that the paper has for its backbones.
BERT, ELECTRA, DEBERTA = (
    "google-bert/bert-base-uncased",
    "cross-encoder/ms-marco-electra-base",
    "microsoft/deberta-v3-base",
)
LONG = {
    "longformer": "allenai/longformer-base-4096",
    "bigbird": "google/bigbird-roberta-base",
    "jina": "jinaai/jina-embeddings-v2-base-en",
    "mosaic": "mosaicml/mosaic-bert-base-seqlen-2048",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
}
SHORT = {"bert": BERT, "electra": ELECTRA, "deberta": DEBERTA}
E5 = "dwzhu/e5-base-4k"


@dataclass(frozen=True, slots=True)
class PaperModel:
    """A model's name and its spec."""

    name: str
    spec: RankerSpec

    @property
    def config(self) -> Mapping[str, Any]:
        """The backbone's parsed config.json."""
        return BACKBONES[self.spec.backbone]


def paper_models() -> Mapping[str, PaperModel]:
    """Every model of the paper by name, in the order of its families."""
    return {model.name: model for model in _models()}


def _models() -> Iterator[PaperModel]:
    for name, backbone in (SHORT | LONG).items():
        yield _model(f"firstp-{name}", "firstp", backbone)
    yield _model("avgp-bert", "avgp", BERT)
    for name, backbone in SHORT.items():
        yield _model(f"maxp-{name}", "maxp", backbone)
    yield _model("sump-bert", "sump", BERT)
    for family in ("cedr-drmm", "cedr-knrm", "cedr-pacrr", "neural-model1", "parade-avg", "parade-max"):
        yield _model(f"{family}-bert", family, BERT)
    for name, backbone in SHORT.items():
        yield _model(f"parade-attn-{name}", "parade-attn", backbone)
    for name in ("bert", "electra"):
        yield _model(f"parade-transf-rand-l2-{name}", "parade-transf-rand", SHORT[name])
    for name, family in (
        ("parade-transf-pretr-l6", "parade-transf-pretr"),
        ("parade-transf-pretr-q-l6", "parade-transf-pretr-q"),
        ("parade-transf-pretr-lateir-l6", "parade-transf-pretr-lateir"),
    ):
        yield _model(f"{name}-bert", family, BERT)
    for name, backbone in LONG.items():
        yield _model(f"longp-{name}", "longp", backbone)
    options = {"query_prefix": "query: ", "document_prefix": "passage: ", "position_step": 8}
    options |= {"aggregation": "first"}
    for name, window in (("firstp-e5-4k", 477), ("longp-e5-4k", 1431)):
        chunking = Chunking("first", window, window, 1431)
        yield _model(name, "biencoder", E5, chunking=chunking, options=options)


def _model(
    name: str,
    family: str,
    backbone: str,
    *,
    chunking: Chunking | None = None,
    options: Mapping[str, Any] | None = None,
) -> PaperModel:
    """Give a model the paper's limits: queries of 32 tokens, padded to as many where chunks hold them."""
    facts = family_named(family)
    chosen: Options = default_options(family, BackboneFacts.from_config(BACKBONES[backbone]))
    spec = RankerSpec(
        family=family,
        backbone=backbone,
        chunking=chunking or default_chunking("pair", facts.chunking, None, whole=facts.whole),
        max_query_tokens=32,
        pad_query_to=32 if facts.plan == "pair" else None,
        options=changed_options(chosen, options or {}),
        provenance={"paper": "arXiv 2207.01262"},
    )
    return PaperModel(name, spec)


def on_meta(model: PaperModel) -> "nn.ModuleDict":
    """Build encoder and aggregator at full size on torch's meta device: shapes without memory."""
    import torch

    family = family_named(model.spec.family)
    with torch.device("meta"):
        return torch.nn.ModuleDict(
            {
                "encoder": family.encoder_class()(model.spec, model.config),
                "aggregator": family.aggregator_class()(model.spec, model.config),
            }
        )


# Words of BERT, ELECTRA and MiniLM, whose vectors the published aggregator transformers hold and never read.
VOCABULARY = 30522


def count_parameters(module: "nn.Module") -> int:
    """Count parameters as Table 6 does: each shared one once, and word embeddings of aggregators, too.

    The papers' transformers of PARADE have such embeddings, though vectors take their place; ours have none.
    """
    from farrank_rankers.families.parade_transformer import VectorTransformer

    own = sum(parameter.numel() for parameter in module.parameters())
    readers = (part for part in module.modules() if isinstance(part, VectorTransformer))
    return own + VOCABULARY * sum(reader.first.numel() for reader in readers)
