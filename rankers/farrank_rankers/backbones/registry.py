"""Which checkpoints get a backbone of this package; torch is not imported before one is built."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from farrank_rankers.backbones.config import AlibiBertConfig, require, require_code
from farrank_rankers.backbones.jina_names import JINA_NAMES
from farrank_rankers.backbones.mosaic_names import MOSAIC_NAMES
from farrank_rankers.backbones.names import PublishedNames
from farrank_rankers.errors import SourceError

if TYPE_CHECKING:
    from torch import nn

OwnBackbone = Literal["jina", "mosaic"]

JINA_ARCHITECTURES = frozenset({"JinaBertForMaskedLM", "JinaBertModel"})

# jina-bert-v2-qk-post-norm has the same keys in its config.json, but other layers: only auto_map tells.
JINA_CODE = frozenset({"jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"})

# A checkpoint names its code by the file alone; one that was saved again from it names the repository too.
MOSAIC_CODE = frozenset(
    {"bert_layers.BertForMaskedLM"}
    | {
        f"mosaicml/mosaic-bert-base{variant}--bert_layers.BertForMaskedLM"
        for variant in ("", "-seqlen-256", "-seqlen-512", "-seqlen-1024", "-seqlen-2048")
    }
)

NAMES: Mapping[OwnBackbone, PublishedNames] = {"jina": JINA_NAMES, "mosaic": MOSAIC_NAMES}


def own_backbone(config: Mapping[str, Any]) -> OwnBackbone | None:
    """Say which of this package's backbones a parsed `config.json` asks for; None leaves it to transformers.

    Both call themselves "bert", as which transformers would build another model without a word. JinaBERT is
    told by its architecture's name, MosaicBERT by alibi_starting_size.
    """
    if config.get("model_type") != "bert":
        return None
    architectures = config.get("architectures")
    if isinstance(architectures, list) and any(name in architectures for name in JINA_ARCHITECTURES):
        return "jina"
    return "mosaic" if "alibi_starting_size" in config else None


def build_backbone(config: Mapping[str, Any]) -> "nn.Module":
    """Build JinaBert or MosaicBert with random weights, to be filled or trained.

    Raises: SourceError naming the key of `config.json` that is missing or has an unsupported value.
    """
    kind = _kind(config)
    require(config, "hidden_act", "gelu")
    if kind == "jina":
        require(config, "position_embedding_type", "alibi")
        require(config, "feed_forward_type", "geglu")
        require_code(config, "AutoModel", JINA_CODE)
    else:
        require_code(config, "AutoModelForMaskedLM", MOSAIC_CODE)
    sizes = AlibiBertConfig.from_config(config)
    if kind == "jina":
        from farrank_rankers.backbones.jina_bert import JinaBert

        return JinaBert(sizes)
    from farrank_rankers.backbones.mosaic_bert import MosaicBert

    return MosaicBert(sizes)


def parameter_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Give the checkpoint's name of every tensor that is read, and the backbone's parameter it goes to.

    Raises: SourceError if the config asks for no backbone of this package, or lacks a size.
    """
    return NAMES[_kind(config)].parameters(AlibiBertConfig.from_config(config).num_hidden_layers)


def ignored_names(config: Mapping[str, Any]) -> frozenset[str]:
    """Give the checkpoint's names of the tensors that are passed over on purpose.

    Raises: SourceError if the config asks for no backbone of this package.
    """
    return NAMES[_kind(config)].ignored


def _kind(config: Mapping[str, Any]) -> OwnBackbone:
    kind = own_backbone(config)
    if kind is None:
        raise SourceError(
            f"config.json: model_type {config.get('model_type')!r} with architectures "
            f"{config.get('architectures')!r} is neither JinaBERT nor MosaicBERT"
        )
    return kind
