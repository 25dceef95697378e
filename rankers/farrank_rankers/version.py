"""A ranker's version: what its scores depend on, as one hash."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farrank_rankers.files.tokenizer_files import TokenizerFiles
from farrank_rankers.spec import RankerSpec


def content_version(
    spec: RankerSpec, files: TokenizerFiles, config: Mapping[str, Any], weights_digest: str
) -> str:
    """Hash spec (names aside), tokenizer, backbone configuration and weights to 16 hexadecimal digits.

    The same content gives the same version on every machine and device, before and after saving, and from an
    export, which keeps its ranker's `weights_digest`.
    """
    digest = hashlib.blake2b(digest_size=8)
    named = replace(spec, backbone="-", provenance={})
    for text in (
        named.to_json(),
        files.tokenizer_json,
        files.config_json,
        json.dumps(config, sort_keys=True),
        weights_digest,
    ):
        digest.update(hashlib.blake2b(text.encode()).digest())
    return digest.hexdigest()
