"""One name for each architecture that `make_backbone` builds and that has a form of its own."""

ARCHITECTURES = (
    "bert",
    "electra",
    "distilbert",
    "roberta",
    "deberta-v2",
    "longformer",
    "big_bird",
    "llama",
    "jina",
    "mosaic",
    "modernbert",
)
