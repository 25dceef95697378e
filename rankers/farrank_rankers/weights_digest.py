"""Weights as one hash, which may be kept where the weights themselves are not read."""

import hashlib

import torch
from torch import nn


def weights_digest(weights: nn.Module) -> str:
    """Hash names, types, shapes and values of a module's tensors to 32 hexadecimal digits.

    Values in half precision count as what they are in fp32, in which models are saved.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.state_dict().items()):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
