"""The operator's contract, from the comments and definitions of `admin.proto`."""

from farrank_docs import contract


def markdown() -> str:
    """A section for each service, message and enum."""
    return contract.markdown("admin.proto")
