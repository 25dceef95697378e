"""How many of a backbone's positions are left for document tokens."""

from dataclasses import dataclass

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.family import BiEncoderOptions, Family, Options
from farrank_rankers.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class PositionBudget:
    """A tokenizer's special tokens against a backbone's positions."""

    tokenizer: TextTokenizer
    backbone: BackboneFacts

    def left_for_window(self, family: Family, query_positions: int, options: Options) -> int | None:
        """Count the document tokens that fit into one input; None if there is no limit, ≤ 0 if none fit."""
        if self.backbone.max_positions is None:
            return None
        if family.plan == "pair":
            return self.backbone.max_positions - self.tokenizer.pair.special_tokens - query_positions
        prefix = options.document_prefix if isinstance(options, BiEncoderOptions) else ""
        return self._left_alone(family, prefix)

    def left_for_query(self, family: Family, options: Options) -> int | None:
        """Count the query tokens that fit into an input of their own; None if there is no limit."""
        prefix = options.query_prefix if isinstance(options, BiEncoderOptions) else ""
        return self._left_alone(family, prefix)

    def _left_alone(self, family: Family, prefix: str) -> int | None:
        if self.backbone.max_positions is None:
            return None
        frame = self.tokenizer.pair if family.reads_as == "pair" else self.tokenizer.single
        return self.backbone.max_positions - frame.special_tokens - len(self.tokenizer.ids(prefix.rstrip()))
