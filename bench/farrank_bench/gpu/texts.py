"""Real texts of the lengths that are wanted, and a tokenizer made of them: nothing is downloaded."""

import random
from collections.abc import Iterable, Sequence

from farrank_bench.calls import QUERIES
from farrank_rankers.chunking import readable_tokens
from farrank_rankers.reader import Reader
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles

# BERT's own has 30,522. No backbone of the papers knows fewer.
WORDS = 30_000
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

# As many tokens as the papers' queries may have, and more.
LONG_QUERY = " and ".join(QUERIES)

# Characters of which so many tokens are made at least, as English and code go, and what is left behind them,
# so that no cut word makes a document too short.
CHARACTERS_PER_TOKEN = 20
MARGIN = 40


def read_corpus() -> list[str]:
    """Read the documentation that every Python carries, its long pages alone."""
    from farrank_server.indexing.pydoc_corpus import read_pydoc

    return [document.text for document in read_pydoc() if len(document.text) > 20_000]


def train_tokenizer(texts: Iterable[str]) -> TextTokenizer:
    """Make a WordPiece tokenizer of BERT's kind out of texts."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    pad, unknown, first, between = SPECIAL_TOKENS
    tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=WORDS, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = {token: tokenizer.token_to_id(token) for token in (between, first)}
    tokenizer.post_processor = processors.BertProcessing((between, ids[between]), (first, ids[first]))
    return TextTokenizer(TokenizerFiles(tokenizer.to_str(), f'{{"pad_token": "{pad}"}}'))


def full_texts(corpus: Sequence[str], reader: Reader, count: int) -> tuple[str, ...]:
    """Cut different texts that fill all a reader keeps of a document, and hardly more.

    Raises: ValueError if the corpus is too short.
    """
    needed = readable_tokens(reader.spec.chunking)
    characters = needed * CHARACTERS_PER_TOKEN
    texts = []
    for number in range(count):
        start = number // len(corpus) * MARGIN
        stretch = corpus[number % len(corpus)][start : start + characters]
        read = reader.read_document(stretch)
        if len(read) < needed:
            raise ValueError(f"a text of {len(stretch)} characters has {len(read)} tokens of {needed}")
        texts.append(stretch[: int(read.ends[-1]) + MARGIN])
    return tuple(texts)


def varied_texts(corpus: Sequence[str], count: int, seed: int) -> tuple[str, ...]:
    """Cut texts of 100 to 8,000 characters."""
    randomly = random.Random(seed)
    texts = []
    for _ in range(count):
        text, length = randomly.choice(corpus), randomly.randint(100, 8000)
        start = randomly.randrange(max(1, len(text) - length))
        texts.append(text[start : start + length])
    return tuple(texts)
