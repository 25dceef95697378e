"""The flags that describe a new ranker, and the ranker that they make."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_cli.exit_codes import CommandError

if TYPE_CHECKING:
    from farrank_rankers.ranker import Ranker

TOKENS = {
    "window": "document tokens of a chunk",
    "stride": "document tokens from one chunk's start to the next",
    "max_document_tokens": "maximum document tokens to read (whole documents)",
    "max_query_tokens": "maximum query tokens to read",
    "pad_query_to": "query tokens to pad to, so that the document's positions do not move",
}


def add_new_ranker_flags(add: partial[None], *, required: bool = True) -> None:
    """Add the flags. Sizes that are not given depend on family and backbone."""
    add("--family FAMILY", "firstp, maxp, parade-attn, longp, …", required=required)
    meaning = "a folder with config.json and tokenizer, a hub name or 'embedded'"
    add("--backbone SOURCE", meaning, required=required)
    for name, meaning in TOKENS.items():
        add(f"--{name.replace('_', '-')} N", meaning, int)
    meaning = "an option of the family, its value as JSON or a plain word: pooling=mean"
    add("--option NAME=VALUE", meaning, repeated=True)
    meaning = "initial weights of PARADE's aggregating transformer; only its size with --random-weights"
    add("--aggregator-backbone SOURCE", meaning)
    add("--interaction-backbone SOURCE", "the same for late interaction's transformer")
    meaning = "for maxsim: values of a token's vector, from its principal components; needs no training"
    add("--projection N", meaning, int)
    meaning = 'texts to find them in, one {"text": …} per line (Python\'s documentation)'
    add("--projection-texts JSONL", meaning, Path)
    add("--random-weights", "do not use the backbone's weights, either")
    meaning = "the papers' limits: documents of 1,431 tokens, queries of 32, padded to 32 in a pair"
    add("--papers", meaning)
    add("--download", "fetch files from the hub that are not in its cache")


def make_new_ranker(args: argparse.Namespace, seed: int) -> "Ranker":
    """Make the ranker that the flags describe.

    Raises: RankerError if the parts do not fit; CommandError if an option is not NAME=VALUE.
    """
    from farrank_rankers.files.untrained import new_ranker
    from farrank_rankers.papers import papers_limits

    limits: dict[str, Any] = dict(papers_limits(args.family)) if args.papers else {}
    limits |= {name: given for name in TOKENS if (given := getattr(args, name)) is not None}
    if args.projection is not None:
        return _projected(args, limits)
    if args.projection_texts is not None:
        raise CommandError("--projection-texts is given without --projection")
    return new_ranker(
        args.family,
        args.backbone,
        seed=seed,
        pretrained=not args.random_weights,
        options=_options(args.option),
        aggregator_backbone=args.aggregator_backbone,
        interaction_backbone=args.interaction_backbone,
        download=args.download,
        **limits,
    )


def _projected(args: argparse.Namespace, limits: dict[str, Any]) -> "Ranker":
    """Make a multi-vector ranker by its projection. Raises: as `make_new_ranker`."""
    from farrank_exporters.texts import python_documentation, read_texts
    from farrank_rankers.files.projected import new_projected_ranker

    if args.family != "maxsim":
        raise CommandError(f"--projection: family is {args.family}; it must be maxsim")
    if args.option or args.random_weights:
        given = "--option" if args.option else "--random-weights"
        raise CommandError(f"--projection determines options and weights; leave out {given}")
    texts = python_documentation() if args.projection_texts is None else read_texts(args.projection_texts)
    return new_projected_ranker(args.backbone, args.projection, texts, download=args.download, **limits)


def _options(given: Sequence[str]) -> dict[str, Any]:
    """Read NAME=VALUE; a value that is not JSON is a string.

    Raises: CommandError if there is no name or no equals sign.
    """
    options: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise CommandError(f"--option {each}: must be NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options
