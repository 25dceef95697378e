"""Kinds of published models that are not served, with the reason and an alternative for each.

docs/reference/models.md has the same table. Nothing here imports torch or transformers.
"""

from dataclasses import dataclass
from pathlib import Path

from farrank_rankers.errors import SourceError

# Characters of the value in a message that identified a kind.
_LONGEST = 30


@dataclass(frozen=True, slots=True)
class NotServed:
    """A kind of model: its name with an example, the reason why it is not served, and an alternative."""

    kind: str
    reason: str
    instead: str

    def error(self, found: str = "", folder: Path | None = None) -> SourceError:
        """Make the error, of one line; `found` is the value that identified the kind."""
        found = " ".join(found.split())
        if len(found) > _LONGEST:
            found = f"{found[:_LONGEST]}…"
        subject, shown = f"{folder} is " if folder else "", f" ({found})" if found else ""
        return SourceError(f"{subject}{self.kind}{shown}: {self.reason}; {self.instead}")


_ANOTHER = "serve a cross-encoder or a bi-encoder"

ADAPTER = NotServed(
    "an adapter beyond plain LoRA, like DoRA",
    "only W + scale * B A is merged here",
    "merge it by peft's merge_and_unload() and save_pretrained()",
)
ADAPTERS = NotServed("a folder of several adapters", "a ranker has one", "name the subfolder of one")
BASELESS = NotServed(
    "an adapter without its base",
    "that must be a published model, in a folder or the local cache",
    "download it, or correct adapter_config.json",
)
LISTWISE = NotServed(
    "a listwise reranker, like jina-reranker-v3",
    "it reads all documents in one input, so each score depends on the others",
    _ANOTHER,
)
IMAGES = NotServed("a model of images and text, like Qwen3-VL-Reranker", "only text is read", _ANOTHER)
TOKEN_POOLING = NotServed(
    "a multi-vector model with token pooling",
    "vectors of tokens are not merged here",
    "remove that module from modules.json",
)
ENCODER_DECODER = NotServed(
    "an encoder-decoder, like monoT5",
    "models with a decoder after the encoder are not run",
    _ANOTHER,
)
SPARSE = NotServed(
    "a sparse encoder, like SPLADE",
    "it weighs words, and compares no vectors",
    "search an index of its weights with a first stage of kind impact",
)
GGUF = NotServed(
    "a model in GGUF",
    "only llama.cpp and its kin read that",
    "serve the safetensors that it was made from",
)
OWN_CODE = NotServed(
    "a model with its own code, like jina-reranker-v2",
    "code that auto_map names is never run",
    "delete auto_map if transformers' class scores alike",
)
UNKNOWN = NotServed(
    "an architecture that transformers lacks",
    "the installed release has no such model_type",
    "install one that has it, or serve another model",
)
GRAPHS_ALONE = NotServed(
    "a model of graphs alone", "model.safetensors is missing", "name one of its graphs by export_file"
)
PICKLED = NotServed(
    "a model with pickled weights",
    "pickles can run code, and are not opened",
    "convert them: save_pretrained() writes safetensors",
)
UNTRAINED = NotServed(
    "a pretrained model, like bert-base-uncased",
    "it has no head, modules.json or ranker.json to score with",
    "farrank rankers new makes a ranker of it, to be trained",
)

KINDS = (
    *(ADAPTER, ADAPTERS, BASELESS, LISTWISE, IMAGES, TOKEN_POOLING, ENCODER_DECODER, SPARSE),
    *(GGUF, OWN_CODE, UNKNOWN, GRAPHS_ALONE, PICKLED, UNTRAINED),
)
