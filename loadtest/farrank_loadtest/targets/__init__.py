"""What can be asked to rerank: a Farrank server, and peers that speak TEI's, Cohere's or Jina's HTTP."""

from farrank_loadtest.targets.target import Answer, Document, Target, TargetError

__all__ = ["Answer", "Document", "Target", "TargetError"]
