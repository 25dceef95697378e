"""sentence-transformers' modules, from where the installed release has them."""

from importlib import import_module
from typing import Any

try:
    _modules = import_module("sentence_transformers.sentence_transformer.modules")
except ModuleNotFoundError:  # before 5.4
    _modules = import_module("sentence_transformers.models")

Dense: Any = _modules.Dense
Normalize: Any = _modules.Normalize
Pooling: Any = _modules.Pooling
Transformer: Any = _modules.Transformer
try:
    _static = import_module("sentence_transformers.sentence_transformer.modules.static_embedding")
except ModuleNotFoundError:
    _static = _modules
StaticEmbedding: Any = _static.StaticEmbedding
