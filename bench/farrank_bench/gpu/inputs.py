"""The papers' models at full size with random weights, and texts and inputs of known lengths."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from farrank_bench.corpus_calls import QUERIES
from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.chunking import PAPERS_DOCUMENT_TOKENS, WHOLE_DOCUMENT, Chunking
from farrank_rankers.papers import paper_models
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles
from farrank_rankers.tokens import EncoderInput, Role

# Three full inputs per document, instead of the fourteen short ones of the papers' sliding windows.
CHUNKINGS = {"parade-attn-bert": Chunking("disjoint", window=477, stride=477, max_document_tokens=1431)}

# For a trial run of the benchmark.
TINY_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def build_model(
    name: str, tokenizer: TextTokenizer, device: torch.device, *, tiny: bool = False, seed: int = 0
) -> Ranker:
    """Build a model of the papers on a device, in fp32. A runtime converts it to its precision.

    Raises: KeyError if the papers have no model of that name.
    """
    model = paper_models()[name]
    config = dict(model.config)
    if tiny:
        config |= TINY_SIZES
        if "attention_window" in config:
            config["attention_window"] = config["attention_window"][: config["num_hidden_layers"]]
        if "embedding_size" in config:
            config["embedding_size"] = config["hidden_size"]
    spec = replace(model.spec, chunking=CHUNKINGS.get(name, model.spec.chunking))
    reader = Reader(spec, tokenizer, BackboneFacts.from_config(config))
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        return Ranker(reader, config).eval()


# BERT's vocabulary has 30,522 tokens. No backbone of the papers has a smaller one.
WORDS = 30_000

# At least as many tokens as the papers' models read of a query.
LONG_QUERY = " and ".join(QUERIES)

# A stretch of this many characters per token has enough tokens, in English and code. MARGIN characters stay
# after the last token, so that a cut word does not make a document too short.
CHARACTERS_PER_TOKEN = 20
MARGIN = 40
SHORTEST, LONGEST = 20, 2000


def train_tokenizer(texts: Iterable[str]) -> TextTokenizer:
    """Train a WordPiece tokenizer like BERT's on texts."""
    from tokenizers import BertWordPieceTokenizer, processors

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=WORDS, show_progress=False)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[SEP]", "[CLS]")]
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return TextTokenizer(TokenizerFiles(tokenizer.to_str(), '{"pad_token": "[PAD]"}'))


def full_texts(corpus: Sequence[str], reader: Reader, count: int) -> tuple[str, ...]:
    """Cut different texts that have all the tokens that a reader keeps of a document, and hardly more.

    For a ranker without a limit they have as many as the papers' documents.
    """
    most = reader.spec.readable_tokens()
    return _cut_texts(corpus, reader, [most if most < WHOLE_DOCUMENT else PAPERS_DOCUMENT_TOKENS] * count)


def mixed_texts(corpus: Sequence[str], reader: Reader, count: int, seed: int = 0) -> tuple[str, ...]:
    """Cut texts of lengths that are uniform from 20 tokens to all that a reader keeps, at most 2,000."""
    longest = min(reader.spec.readable_tokens(), LONGEST)
    return _cut_texts(corpus, reader, random.Random(seed).choices(range(SHORTEST, longest + 1), k=count))


def _cut_texts(corpus: Sequence[str], reader: Reader, lengths: Sequence[int]) -> tuple[str, ...]:
    """Cut different texts of the given numbers of tokens, or slightly more.

    Raises: ValueError if the corpus is too short.
    """
    texts = []
    for number, length in enumerate(lengths):
        start = number // len(corpus) * MARGIN
        stretch = corpus[number % len(corpus)][start : start + length * CHARACTERS_PER_TOKEN]
        read = reader.read_document(stretch)
        if len(read) < length:
            raise ValueError(f"a text of {len(stretch)} characters has {len(read)} tokens of {length}")
        texts.append(stretch[: int(read.ends[length - 1]) + MARGIN])
    return tuple(texts)


def real_tokens(item: EncoderInput) -> int:
    """Count the tokens without padding inside the query."""
    return int((item.roles != Role.PADDING).sum())


def leading_tokens(item: EncoderInput) -> int:
    """Count the tokens before the document: [CLS], the query and its separator."""
    first = np.flatnonzero(item.roles == Role.DOCUMENT)[0]
    return int((item.roles[:first] != Role.PADDING).sum())
