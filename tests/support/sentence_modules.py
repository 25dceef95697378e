"""The modules that sentence-transformers makes models of, where the installed release has them."""

try:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
except ModuleNotFoundError:  # before 5.4
    from sentence_transformers.models import Pooling, Transformer

__all__ = ["Pooling", "Transformer"]
