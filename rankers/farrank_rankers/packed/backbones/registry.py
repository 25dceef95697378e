"""Which architectures have a packed form: an explicit registry by model_type."""

from collections.abc import Mapping
from typing import Any

from farrank_rankers.backbones.bert import PackedBert
from farrank_rankers.backbones.big_bird import PackedBigBird
from farrank_rankers.backbones.deberta import PackedDeberta
from farrank_rankers.backbones.distilbert import PackedDistilBert
from farrank_rankers.backbones.llama import PackedLlama
from farrank_rankers.backbones.longformer import PackedLongformer, PackedLongformerInClassifier
from farrank_rankers.packed.backbones.alibi_bert import PackedAlibiBert
from farrank_rankers.packed.backbones.heads import HEADS, PackedClassifier
from farrank_rankers.packed.packed_backbone import Compile, PackedBackbone, PackedForm, as_written

PACKED: Mapping[str, PackedForm] = {
    "bert": PackedBert,
    "big_bird": PackedBigBird,
    "camembert": PackedBert,
    "data2vec-text": PackedBert,
    "deberta-v2": PackedDeberta,
    "distilbert": PackedDistilBert,
    "electra": PackedBert,
    "jina": PackedAlibiBert,
    "llama": PackedLlama,
    "longformer": PackedLongformer,
    "mosaic": PackedAlibiBert,
    "roberta": PackedBert,
    "xlm-roberta": PackedBert,
}
# What attends otherwise below a classifier than where its token vectors are read.
IN_CLASSIFIERS: Mapping[str, PackedForm] = {"longformer": PackedLongformerInClassifier}


def packed_backbone(
    backbone: Any, architecture: str, compile_by: Compile = as_written
) -> PackedBackbone | None:
    """Put a packed form on a backbone's weights; None if it must be given padded batches.

    That is so of an architecture that has no packed form, and of a variant that computes something else.
    """
    base = getattr(backbone, "base_model", backbone)
    is_classifier = base is not backbone
    form = ({**PACKED, **IN_CLASSIFIERS} if is_classifier else PACKED).get(architecture)
    if form is None or (is_classifier and architecture not in HEADS) or not form.serves(base):
        return None
    packed = form(base, compile_by)
    return PackedClassifier(packed, backbone, HEADS[architecture]) if is_classifier else packed
