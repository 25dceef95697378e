"""Language models that answer a question about query and document with one of two tokens.

The answer's logits are those of the model's output embedding at the last position of a prompt (see
`YesNoOptions`). Only the answers' rows of that embedding are loaded and computed.

Source: Nogueira et al., "Document Ranking with a Pretrained Sequence-to-Sequence Model", Findings of EMNLP
2020, for the idea; Qwen3-Reranker, mxbai-rerank-v2 and bge-reranker-v2-gemma as published.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SourceError
from farrank_rankers.family import YesNoOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.prompt import check_answer
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec

# The output embedding in a checkpoint that does not share it with the input.
OUTPUT_EMBEDDING = "lm_head.weight"
_BIAS = "lm_head.bias"

# Keys of factors of logits, and their neutral values; architectures with other values were not tried here.
_FACTORS = {"logit_scale": 1, "logits_scaling": 1, "lm_head_multiplier": 1}


class AnswerEncoder(Encoder):
    """Encode a prompt as the log-odds of its two answers, or as the logit of its only answer.

    `answers` are the output embedding's rows of yes and, if the family has one, of no.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.options = spec.options_as(YesNoOptions)
        built = transformers_config(config)
        for key, neutral in _FACTORS.items():
            if getattr(built, key, None) not in (None, neutral):
                raise SourceError(f"config.json: {key} is {getattr(built, key)}; it must be {neutral}")
        self.soft_cap: float | None = getattr(built, "final_logit_softcapping", None)
        self._tied = bool(getattr(built, "tie_word_embeddings", False))
        self.answers = nn.Linear(built.hidden_size, 1 if self.options.no is None else 2, bias=False)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, 1)."""
        last = tokens.last(output.last_hidden_state)  # (P, H)
        # In half precision the difference of two close logits would have few digits.
        logits = nn.functional.linear(last.float(), self.answers.weight.float())  # (P, 1 or 2)
        if self.soft_cap is not None:
            logits = self.soft_cap * (logits / self.soft_cap).tanh()
        return Features(logits[:, :1] - logits[:, 1:] if self.options.no is not None else logits)

    def own_weights(self, published: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Take the answers' rows from the checkpoint, or from the input embedding if it is shared.

        Shapes: -> answers.weight (1 or 2, H). Raises: SourceError if the logits have a bias, as Phi 2's have.
        """
        if _BIAS in published:
            raise SourceError(
                f"{_BIAS} is among the weights; language models whose logits have no bias are served"
            )
        named = {"yes": self.options.yes, "no": self.options.no}
        answers = {name: answer for name, answer in named.items() if answer is not None}
        ids = [check_answer(reader.tokenizer, name, answer) for name, answer in answers.items()]
        backbone: Any = self.backbone
        embedding = backbone.get_input_embeddings().weight if self._tied else published.get(OUTPUT_EMBEDDING)
        if embedding is None:
            return {}
        return {"answers.weight": embedding.detach()[torch.tensor(ids)]}
