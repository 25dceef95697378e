"""The corpus of the demo."""

import pytest

from farrank_server.indexing.pydoc_corpus import read_pydoc


@pytest.fixture(scope="session")
def corpus() -> dict[str, str]:
    """The text of every document that the demo embeds and ranks."""
    return {document.doc_id: document.text for document in read_pydoc()}
