"""Classifiers of transformers: from token vectors to an input's logits."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.packed.packed_backbone import PackedBackbone, PackedOutput
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.stream import TokenStream

# Called with a transformers model, the stream, and the last layer's vectors (T, H); gives logits (P, labels).
Head = Callable[[Any, TokenStream, Tensor], Tensor]


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
        return output._replace(logits=self._head(self._classifier, stream, output.last_hidden_state))


def pooled_first(model: Any, stream: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the model's pooler, then the classifier. Shapes: (T, H) -> (P, labels)."""
    first = stream.first(hidden)[:, None]  # (P, 1, H), inputs of one token
    logits: Tensor = model.classifier(model.base_model.pooler(first))
    return logits


def pooled_by_head(model: Any, stream: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the head's pooler, then to the classifier. Shapes: (T, H) -> (P, labels)."""
    first = stream.first(hidden)[:, None]  # (P, 1, H), inputs of one token
    logits: Tensor = model.classifier(model.pooler(first))
    return logits


def first_alone(model: Any, stream: TokenStream, hidden: Tensor) -> Tensor:
    """Leave the first token to the classifier and its own layers. Shapes: (T, H) -> (P, labels)."""
    first = stream.first(hidden)[:, None]  # (P, 1, H), inputs of one token
    logits: Tensor = model.classifier(first)
    return logits


def first_widened(model: Any, stream: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to DistilBERT's two layers. Shapes: (T, H) -> (P, labels)."""
    logits: Tensor = model.classifier(model.pre_classifier(stream.first(hidden)).relu())
    return logits


def last_written(model: Any, stream: TokenStream, hidden: Tensor) -> Tensor:
    """Score the last token whose id is not the padding's, or the first if all are.

    transformers knows padding by its id: a text's own token of that id at an input's end is passed over too.
    Shapes: (T, H) -> (P, labels).
    """
    first = stream.segments.offsets[:-1].long()  # (P,)
    places = torch.arange(len(hidden), device=hidden.device)  # (T,)
    pad = model.config.pad_token_id
    if pad is not None:
        places = places.masked_fill(stream.input_ids == pad, 0)  # (T,)
    last = first.scatter_reduce(0, stream.inputs.long(), places, "amax")  # (P,)
    logits: Tensor = model.score(hidden.index_select(0, last))
    return logits


HEADS: Mapping[str, Head] = {
    "bert": pooled_first,
    "big_bird": first_alone,
    "camembert": first_alone,
    "data2vec-text": first_alone,
    "deberta-v2": pooled_by_head,
    "distilbert": first_widened,
    "electra": first_alone,
    "llama": last_written,
    "longformer": first_alone,
    "roberta": first_alone,
    "xlm-roberta": first_alone,
}
