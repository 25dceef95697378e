"""The models of "Understanding Performance of Long-Document Ranking Models", at full size, without weights.

A backbone's entry has the keys of its published `config.json` about size and kind that are not transformers'
defaults. This module does not import torch.
Source: Boytsov et al., arXiv 2207.01262: its models, Table 6 (parameters) and section 3.1 (limits).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.chunking import PAPERS_DOCUMENT_TOKENS, Chunking, adjusted, default_chunking
from farrank_rankers.families.classes import aggregator_class, encoder_class
from farrank_rankers.family import family_named
from farrank_rankers.files.open import ReadingLimits
from farrank_rankers.spec import RankerSpec, family_options

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


def _like_bert(model_type: str, positions: int, words: int, **others: Any) -> Config:
    sizes = {"model_type": model_type, "max_position_embeddings": positions, "vocab_size": words}
    return {**_BERT_BASE, **sizes, **others}


# The paper's names of its backbones, and the hub's.
BERT, E5 = "google-bert/bert-base-uncased", "dwzhu/e5-base-4k"
SHORT = {
    "bert": BERT,
    "electra": "cross-encoder/ms-marco-electra-base",
    "deberta": "microsoft/deberta-v3-base",
}
LONG = {
    "longformer": "allenai/longformer-base-4096",
    "bigbird": "google/bigbird-roberta-base",
    "jina": "jinaai/jina-embeddings-v2-base-en",
    "mosaic": "mosaicml/mosaic-bert-base-seqlen-2048",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
}

BACKBONES: Mapping[str, Config] = {
    BERT: _BERT_BASE,
    SHORT["electra"]: _like_bert("electra", 512, 30522, embedding_size=768),
    SHORT["deberta"]: _like_bert(
        "deberta-v2",
        512,
        128100,
        layer_norm_eps=1e-7,
        norm_rel_ebd="layer_norm",
        pos_att_type="p2c|c2p",
        position_biased_input=False,
        position_buckets=256,
        relative_attention=True,
        share_att_key=True,
        type_vocab_size=0,
    ),
    LONG["longformer"]: _like_bert(
        "longformer",
        4098,
        50265,
        attention_window=[512] * 12,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        type_vocab_size=1,
    ),
    LONG["bigbird"]: _like_bert(
        "big_bird", 4096, 50358, attention_type="block_sparse", block_size=64, hidden_act="gelu_new"
    ),
    LONG["jina"]: _like_bert(
        "bert",
        8192,
        30528,
        architectures=["JinaBertForMaskedLM"],
        attention_probs_dropout_prob=0.0,
        auto_map={"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        feed_forward_type="geglu",
        position_embedding_type="alibi",
    ),
    LONG["mosaic"]: _like_bert(
        "bert",
        512,
        30528,
        alibi_starting_size=2048,
        auto_map={"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"},
    ),
    LONG["tinyllama"]: {
        "model_type": "llama",
        "eos_token_id": 2,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "max_position_embeddings": 2048,
        "num_attention_heads": 32,
        "num_hidden_layers": 22,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32000,
    },
    E5: _like_bert("bert", 4096, 30522),
}

# By names of models without their backbones: the family, and the backbones.
_MODELS: Mapping[str, tuple[str, Iterable[str]]] = {
    "firstp": ("firstp", SHORT | LONG),
    "avgp": ("avgp", ["bert"]),
    "maxp": ("maxp", SHORT),
    "sump": ("sump", ["bert"]),
    "cedr-drmm": ("cedr-drmm", ["bert"]),
    "cedr-knrm": ("cedr-knrm", ["bert"]),
    "cedr-pacrr": ("cedr-pacrr", ["bert"]),
    "neural-model1": ("neural-model1", ["bert"]),
    "parade-avg": ("parade-avg", ["bert"]),
    "parade-max": ("parade-max", ["bert"]),
    "parade-attn": ("parade-attn", SHORT),
    "parade-transf-rand-l2": ("parade-transf-rand", ["bert", "electra"]),
    "parade-transf-pretr-l6": ("parade-transf-pretr", ["bert"]),
    "parade-transf-pretr-q-l6": ("parade-transf-pretr-q", ["bert"]),
    "parade-transf-pretr-lateir-l6": ("parade-transf-pretr-lateir", ["bert"]),
    "longp": ("longp", LONG),
}


def papers_limits(family: str) -> ReadingLimits:
    """Give the papers' limits: documents of 1,431 tokens; queries of 32, padded to 32 if chunks include them.

    Windows are those of every new ranker. Raises: SpecError if the family is unknown.
    """
    pads = family_named(family).plan == "pair"
    return ReadingLimits(
        max_document_tokens=PAPERS_DOCUMENT_TOKENS, max_query_tokens=32, pad_query_to=32 if pads else None
    )


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
    backbones = SHORT | LONG
    models = [
        _model(f"{name}-{each}", family, backbones[each])
        for name, (family, its_backbones) in _MODELS.items()
        for each in its_backbones
    ]
    options = {"query_prefix": "query: ", "document_prefix": "passage: ", "position_step": 8}
    options |= {"aggregation": "first"}
    for name, window in (("firstp-e5-4k", 477), ("longp-e5-4k", PAPERS_DOCUMENT_TOKENS)):
        chunking = Chunking("first", window, window, PAPERS_DOCUMENT_TOKENS)
        models.append(_model(name, "biencoder", E5, chunking, options))
    return {model.name: model for model in models}


def _model(
    name: str,
    family: str,
    backbone: str,
    chunking: Chunking | None = None,
    options: Mapping[str, Any] | None = None,
) -> PaperModel:
    """Give a model the paper's limits."""
    facts = family_named(family)
    backbone_facts = BackboneFacts.from_config(BACKBONES[backbone])
    limits = papers_limits(family)
    spec = RankerSpec(
        family=family,
        backbone=backbone,
        chunking=chunking
        or adjusted(
            default_chunking("pair", facts.chunking, None),
            window=PAPERS_DOCUMENT_TOKENS if facts.whole else None,
            max_document_tokens=limits["max_document_tokens"],
        ),
        max_query_tokens=32,
        pad_query_to=limits["pad_query_to"],
        options=family_options(family, backbone_facts, options),
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
                "encoder": encoder_class(family)(model.spec, model.config),
                "aggregator": aggregator_class(family)(model.spec, model.config),
            }
        )


# Size of the vocabulary of BERT, ELECTRA and MiniLM, whose vectors the published aggregator transformers have
# but never read.
VOCABULARY = 30522


def count_parameters(module: "nn.Module") -> int:
    """Count parameters as Table 6 does: shared ones once, including word embeddings of aggregators.

    The papers' transformers of PARADE have such embeddings, though they read vectors; ours have none.
    """
    from farrank_rankers.families.parade_transformer import VectorTransformer

    own = sum(parameter.numel() for parameter in module.parameters())
    readers = (part for part in module.modules() if isinstance(part, VectorTransformer))
    return own + VOCABULARY * sum(reader.first.numel() for reader in readers)
