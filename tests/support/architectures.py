"""One name for each architecture that `make_backbone` builds and that has its own form."""

ARCHITECTURES = (
    "bert",
    "electra",
    "distilbert",
    "roberta",
    "deberta-v2",
    "longformer",
    "big_bird",
    "llama",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "jina",
    "mosaic",
    "modernbert",
)
