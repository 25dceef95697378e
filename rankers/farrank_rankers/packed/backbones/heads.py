"""Classifiers of transformers: from an input's first token vector to its logits."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from farrank_rankers.packed.attention.interface import Attention
from farrank_rankers.packed.backbones.interface import PackedBackbone, PackedOutput
from farrank_rankers.packed.stream import TokenStream

# Called with a transformers model and the first token's vectors as inputs of one token, (P, 1, H).
Head = Callable[[Any, Tensor], Tensor]


class PackedClassifier:
    """A packed backbone with a classifier's head. Shapes: T tokens of P inputs -> logits (P, labels)."""

    def __init__(self, backbone: PackedBackbone, classifier: Any, head: Head) -> None:
        self._backbone = backbone
        self._classifier = classifier
        self._head = head

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,) -> last_hidden_state (T, H), logits (P, labels)."""
        output = self._backbone(stream, positions, attention, hidden_states=hidden_states)
        first = stream.first(output.last_hidden_state)[:, None]  # (P, 1, H)
        return output._replace(logits=self._head(self._classifier, first))


def pooled_first(model: Any, first: Tensor) -> Tensor:
    """Pass the model's own pooler, then the classifier. Shapes: (P, 1, H) -> (P, labels)."""
    logits: Tensor = model.classifier(model.base_model.pooler(first))
    return logits


def first_alone(model: Any, first: Tensor) -> Tensor:
    """Leave the first token to the classifier and its own layers. Shapes: (P, 1, H) -> (P, labels)."""
    logits: Tensor = model.classifier(first)
    return logits


HEADS: Mapping[str, Head] = {
    "bert": pooled_first,
    "electra": first_alone,
    "roberta": first_alone,
    "xlm-roberta": first_alone,
}
