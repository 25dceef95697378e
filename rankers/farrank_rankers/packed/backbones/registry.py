"""Which architectures have a packed form: an explicit registry by model_type."""

from collections.abc import Callable, Mapping
from typing import Any

from farrank_rankers.packed.backbones.bert import PackedBert
from farrank_rankers.packed.backbones.heads import HEADS, PackedClassifier
from farrank_rankers.packed.backbones.interface import PackedBackbone

PACKED: Mapping[str, Callable[[Any], PackedBackbone]] = {
    "bert": PackedBert,
    "electra": PackedBert,
    "roberta": PackedBert,
    "xlm-roberta": PackedBert,
}


def packed_backbone(backbone: Any, architecture: str) -> PackedBackbone | None:
    """Put a packed form on a backbone's weights; None if its architecture has none."""
    base = getattr(backbone, "base_model", backbone)
    is_classifier = base is not backbone
    if architecture not in PACKED or (is_classifier and architecture not in HEADS):
        return None
    packed = PACKED[architecture](base)
    return PackedClassifier(packed, backbone, HEADS[architecture]) if is_classifier else packed
