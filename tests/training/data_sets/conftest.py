"""A real tokenizer, and the collections next to the checkout."""

import pytest

from farrank_rankers.files.model_files import locate
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """Word pieces of all-MiniLM-L6-v2."""
    return TextTokenizer(TokenizerFiles.read(locate("embedded").folder))
