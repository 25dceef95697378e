"""A bi-encoder that encodes documents' chunks during indexing, as the runtime that serves it would."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from farrank_indexes.encodings_store import EncodedText
from farrank_rankers.files.open import Overrides
from farrank_rankers.reader import ChunkFramer
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import EncoderInput, TokenizedText
from farrank_runtimes.choose import ServableRanker, open_ranker_runtime
from farrank_runtimes.runtime import Precision
from farrank_settings.errors import ConfigError

# On a CPU, batches of this many positions encode fastest. Twice as many do not fit into its cache; a quarter
# does not keep all cores busy.
BATCH_POSITIONS = 4096


class ChunkEncoder:
    """The bi-encoder of a source, opened as `farrank serve` opens it, or with the given `precision`.

    `quick` is bf16 if the processor has instructions for it, else fp32. Documents are read up to the ranker's
    own limit, or up to `max_document_tokens`.
    Raises: ConfigError if the ranker does not encode each chunk into one vector; as `open_ranker_runtime`.
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
        if self._spec.similarity is None:
            self._served.runtime.close()
            raise ConfigError(
                f"{source}: is of family {self._spec.family}; only a bi-encoder encodes chunks alone"
            )
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="farrank-reader")
        self._positions = max(BATCH_POSITIONS, self._served.reader.max_input_tokens)

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

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """Encode documents, in batches of chunks of similar length."""
        reader = self._served.reader
        read = list(self._threads.map(self._read, texts))
        split = [reader.split(each) for each in read]
        framer = ChunkFramer(reader, None)
        inputs = [each for chunks in split for each in framer.inputs(chunks)]
        vectors = self._vectors(inputs)
        ends = np.cumsum([len(chunks) for chunks in split])
        return [
            EncodedText(
                its,
                np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.uint32),
                len(text),
                len(each),
                (each.characters_cut, each.tokens_cut or 0),
            )
            for text, each, chunks, its in zip(texts, read, split, np.split(vectors, ends[:-1]), strict=True)
        ]

    def close(self) -> None:
        """Release its threads and weights."""
        self._threads.shutdown()
        self._served.runtime.close()

    def _read(self, text: str) -> TokenizedText:
        # Read to the end: the store must also answer calls that ask how many tokens were cut.
        return self._served.reader.read_document(text, count_tokens=True)

    def _vectors(self, inputs: Sequence[EncoderInput]) -> NDArray[np.float32]:
        order = sorted(range(len(inputs)), key=lambda place: -inputs[place].tokens)
        found: list[NDArray[np.float32]] = []
        for batch in self._batches([inputs[place] for place in order]):
            encoded = self._served.runtime.encode(batch)
            found += [row.to("cpu").vectors.float().numpy() for row in encoded.rows()]
        vectors = np.empty((len(inputs), len(found[0])), dtype=np.float32)
        vectors[order] = found
        return vectors

    def _batches(self, longest_first: Sequence[EncoderInput]) -> Iterator[list[EncoderInput]]:
        batch: list[EncoderInput] = []
        for each in longest_first:
            if batch and (len(batch) + 1) * batch[0].tokens > self._positions:
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch


def _quick() -> Precision:
    """Choose bf16 if the hardware computes in it: in software it is slower than fp32."""
    able = torch.cpu.get_capabilities()
    return "bf16" if able.get("avx512_bf16") or able.get("amx_bf16") else "fp32"
