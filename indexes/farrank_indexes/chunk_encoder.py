"""Rankers that encode documents during indexing, as the runtimes that serve them would."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from operator import itemgetter
from typing import Literal

import numpy as np
import torch

from farrank_indexes.encodings_store import EncodedText, EncodingsStoreBuilder
from farrank_indexes.token_vector_store import EncodedTokens, TokenVectorsBuilder
from farrank_rankers.features import Features, stacked
from farrank_rankers.files.open import Overrides, open_reader
from farrank_rankers.reader import ChunkFramer
from farrank_rankers.spec import RankerSpec
from farrank_rankers.token_vectors import document_vectors
from farrank_rankers.tokens import Chunk, EncoderInput, TokenizedText
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_runtimes.document_groups import kept
from farrank_runtimes.runtime import CodecName, Precision
from farrank_runtimes.token_codecs import fit
from farrank_settings.errors import ConfigError

# On a CPU, batches of this many positions encode fastest. Twice as many do not fit into its cache; a quarter
# does not keep all cores busy.
BATCH_POSITIONS = 4096


class _OpenRanker:
    """The ranker of a source, opened as `farrank serve` opens it, or with the given `precision`.

    `quick` is bf16 if the processor has instructions for it, else fp32. Documents are read up to the ranker's
    own limit, or up to `max_document_tokens`.
    Raises: ConfigError if the ranker does not encode as the class says; as `open_ranker_runtime`.
    """

    def __init__(
        self,
        source: str,
        precision: Precision | Literal["quick"] | None = None,
        max_document_tokens: int | None = None,
    ) -> None:
        threads = os.cpu_count() or 1
        chosen = _quick() if precision == "quick" else precision
        self._served: ServableRanker = open_ranker_runtime(
            source, Overrides(max_document_tokens=max_document_tokens), precision=chosen
        )
        self._spec: RankerSpec = self._served.reader.spec
        if reason := self._why_not(self._spec):
            self._served.runtime.close()
            raise ConfigError(f"{source}: is of family {self._spec.family}; {reason}")
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="farrank-reader")
        self._positions = max(BATCH_POSITIONS, self._served.reader.max_input_tokens)

    @staticmethod
    def _why_not(spec: RankerSpec) -> str:
        """Explain why a ranker does not encode this way. Empty if it does."""
        raise NotImplementedError

    @property
    def version(self) -> str:
        """Changes with weights, tokenizer or windows, but not with the limit on a document's tokens."""
        return self._served.encodings_version

    @property
    def max_document_tokens(self) -> int:
        """The number of tokens that it reads of a document."""
        return self._spec.chunking.max_document_tokens

    @property
    def precision(self) -> str:
        """The precision in which it computes."""
        return self._served.runtime.capabilities().precision

    def close(self) -> None:
        """Release its threads and weights."""
        self._threads.shutdown()
        self._served.runtime.close()

    def _read(self, text: str) -> TokenizedText:
        # Read to the end: the store must also answer calls that ask how many tokens were cut.
        return self._served.reader.read_document(text, count_tokens=True)

    def _encode(
        self, texts: Sequence[str]
    ) -> Iterator[tuple[TokenizedText, Sequence[Chunk], Sequence[Features]]]:
        """Encode documents' chunks, in batches of similar length. Yields their features in host memory."""
        reader = self._served.reader
        read = list(self._threads.map(self._read, texts))
        split = [reader.split(each) for each in read]
        framer = ChunkFramer(reader, None)
        features = iter(self._features([each for chunks in split for each in framer.inputs(chunks)]))
        for each, chunks in zip(read, split, strict=True):
            yield each, chunks, list(islice(features, len(chunks)))

    def _features(self, inputs: Sequence[EncoderInput]) -> list[Features]:
        order = sorted(range(len(inputs)), key=lambda place: -inputs[place].tokens)
        found: list[tuple[int, Features]] = []
        places = iter(order)
        for batch in self._batches([inputs[place] for place in order]):
            rows = self._served.runtime.encode(batch).rows()
            # Rows are views of a padded batch.
            found += [(next(places), kept(row, on_host=True)) for row in rows]
        return [row for _, row in sorted(found, key=itemgetter(0))]

    def _batches(self, longest_first: Sequence[EncoderInput]) -> Iterator[list[EncoderInput]]:
        batch: list[EncoderInput] = []
        for each in longest_first:
            if batch and (len(batch) + 1) * batch[0].tokens > self._positions:
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch


class ChunkEncoder(_OpenRanker):
    """A bi-encoder: a vector for each chunk. Parameters and Raises: `_OpenRanker`."""

    @staticmethod
    def _why_not(spec: RankerSpec) -> str:
        return "" if spec.similarity else "only a bi-encoder encodes chunks alone"

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Encode documents."""
        return [
            EncodedText(
                torch.stack([row.vectors for row in rows]).float().numpy(),
                np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.uint32),
                len(text),
                len(read),
                (read.characters_cut, read.tokens_cut or 0),
            )
            for text, (read, chunks, rows) in zip(texts, self._encode(texts), strict=True)
        ]


class TokenVectorEncoder(_OpenRanker):
    """A ranker that compares token vectors by MaxSim. Parameters and Raises: `_OpenRanker`."""

    def __init__(
        self,
        source: str,
        precision: Precision | Literal["quick"] | None = None,
        max_document_tokens: int | None = None,
    ) -> None:
        super().__init__(source, precision, max_document_tokens)
        # Special tokens have vectors, too.
        self.width = self.encode([""])[0].vectors.shape[1]

    @staticmethod
    def _why_not(spec: RankerSpec) -> str:
        return "" if spec.maxsim else "it does not compare token vectors by MaxSim"

    def encode(self, texts: Sequence[str]) -> list[EncodedTokens]:
        """Encode documents."""
        reader = self._served.reader
        found = []
        for text, (read, chunks, rows) in zip(texts, self._encode(texts), strict=True):
            compared = document_vectors(stacked(rows), reader, read)
            found.append(
                EncodedTokens(
                    vectors=compared.vectors,
                    window_ends=compared.window_ends,
                    spans=np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.uint32),
                    characters=len(text),
                    tokens=len(read),
                    cut=(read.characters_cut, read.tokens_cut or 0),
                )
            )
        return found


def encoding_store(
    source: str,
    precision: Precision | Literal["quick"] | None = None,
    max_document_tokens: int | None = None,
    codec: CodecName | None = None,
) -> EncodingsStoreBuilder | TokenVectorsBuilder:
    """Open a ranker and the store that its encodings need. `codec` is that of token vectors.

    Raises: ConfigError if the ranker encodes no document alone, its vectors do not fit the codec, or `codec`
    is given for chunks' vectors; as `open_ranker_runtime`.
    """
    spec = open_reader(source).spec
    if spec.maxsim is not None:
        encoder = TokenVectorEncoder(source, precision, max_document_tokens)
        codec = codec or "int8"
        try:
            fit(codec, np.zeros((1, encoder.width), np.float32))
        except ValueError as error:
            encoder.close()
            raise ConfigError(f"{source}: {error}; use another codec") from None
        return TokenVectorsBuilder(encoder, codec)
    if codec is not None:
        raise ConfigError(f"{source}: is of family {spec.family}; only token vectors have a codec")
    return EncodingsStoreBuilder(ChunkEncoder(source, precision, max_document_tokens))


def _quick() -> Precision:
    """Choose bf16 if the hardware computes in it: in software it is slower than fp32."""
    able = torch.cpu.get_capabilities()
    return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"
