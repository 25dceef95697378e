"""A ranker's version: what its scores depend on, as one hash."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from farrank_rankers.files.tokenizer_files import TokenizerFiles
from farrank_rankers.spec import RankerSpec


def content_version(
    spec: RankerSpec, files: TokenizerFiles, config: Mapping[str, Any], weights: nn.Module
) -> str:
    """Hash spec (names aside), tokenizer, backbone configuration and weights to 16 hexadecimal digits.

    The same content gives the same version on every machine and device, before and after saving.
    """
    digest = hashlib.blake2b(digest_size=8)
    named = replace(spec, backbone="-", provenance={})
    for text in (
        named.to_json(),
        files.tokenizer_json,
        files.config_json,
        json.dumps(config, sort_keys=True),
    ):
        digest.update(hashlib.blake2b(text.encode()).digest())
    for name, tensor in sorted(weights.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
