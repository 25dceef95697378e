"""How a checkpoint's tensor names become a backbone's parameter names."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """A published checkpoint's names on the left, ours on the right; {n} stands for a layer's number.

    `prefix` stands before every published name of the encoder; `ignored` are the names, in full, of tensors
    that belong to a head or can be computed, and of which an encoder has no use.
    """

    prefix: str
    embeddings: Mapping[str, str]
    layer: Mapping[str, str]
    ignored: frozenset[str]

    def parameters(self, layers: int) -> dict[str, str]:
        """Write the table out for an encoder of so many layers."""
        table = {f"{self.prefix}{published}": own for published, own in self.embeddings.items()}
        for n in range(layers):
            for published, own in self.layer.items():
                table[self.prefix + published.format(n=n)] = own.format(n=n)
        return table
