"""The speedup from encoding a prompt's prefix once per call: `python -m farrank_bench.shared_prefixes`.

In the prompts of generative language models, template and query precede the document. Their keys and values
are the same for all chunks of a call, so they can be computed once and read by every chunk. Weights are
random: time does not depend on them.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from farrank_bench.report import Command, Heading, Measure, Row
from farrank_rankers.lean_transformers import transformers

NOTES = (
    "transformers' Qwen3, random weights, {precision}, {threads} threads, {chunks} chunks of a call in one "
    "batch; the prefix is template, instruction and query (Qwen3-Reranker's has some 80 tokens without the "
    "query), the rest is a chunk and the template's end; ms per chunk with the prefix in every chunk, with "
    "the prefix's keys and values computed once per call, and the speedup; medians of {repeats}"
)
VOCABULARY = 32_000
# The template's end follows the chunk in every input.
SUFFIX_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a Qwen3."""

    hidden: int
    layers: int
    heads: int
    shared_heads: int
    head_width: int
    intermediate: int


SIZES = {
    "small": Size(256, 8, 8, 4, 64, 768),
    # Qwen/Qwen3-Reranker-0.6B except for its vocabulary.
    "0.6B": Size(1024, 28, 16, 8, 128, 3072),
}


def main() -> int:
    """Measure size after size, length after length, and print the table."""
    command = Command("farrank_bench.shared_prefixes", __doc__)
    add = command.options.add_argument
    add("--sizes", nargs="+", default=["small"], choices=SIZES)
    add("--prefixes", nargs="+", type=int, default=[100, 160], help="tokens of template and query")
    add("--windows", nargs="+", type=int, default=[64, 150, 512], help="tokens of a chunk")
    add("--chunks", type=int, default=8, help="chunks of the call")
    add("--repeats", type=int, default=5)
    add("--precision", choices=("fp32", "bf16"), default="fp32")
    given = command.parse(None)
    notes = NOTES.format(threads=torch.get_num_threads(), **vars(given))
    heading = Heading("Shared prefixes", notes, one_table="Chunks")
    return command.report(heading, parts(given), given.out)


def parts(given: Any) -> Iterator[tuple[str, Measure]]:
    """Yield a measurement for each size, prefix and window."""
    for name in given.sizes:
        model = build(SIZES[name], torch.bfloat16 if given.precision == "bf16" else torch.float32)
        for prefix in given.prefixes:
            for window in given.windows:
                measured = partial(
                    measure, model, prefix, window + SUFFIX_TOKENS, given.chunks, given.repeats
                )
                yield f"{name}: prefix {prefix}, window {window}", partial(_row, measured)


def _row(measured: Callable[[], tuple[float, float]]) -> list[Row]:
    repeated_ms, shared_ms = measured()
    return [Row("whole; shared; times", f"{repeated_ms:.1f}; {shared_ms:.1f}; {repeated_ms / shared_ms:.2f}")]


def build(size: Size, dtype: torch.dtype) -> Any:
    """Build a Qwen3 with random weights."""
    config = transformers.AutoConfig.for_model(
        "qwen3",
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.shared_heads,
        head_dim=size.head_width,
        intermediate_size=size.intermediate,
    )
    torch.manual_seed(1)
    return transformers.AutoModel.from_config(config).to(dtype).eval()


def measure(model: Any, prefix: int, rest: int, chunks: int, repeats: int) -> tuple[float, float]:
    """Time both ways in turns, in ms per chunk, after a check that both give the same last vectors."""
    generator = torch.Generator().manual_seed(2)
    before = torch.randint(VOCABULARY, (1, prefix), generator=generator)  # (1, S)
    behind = torch.randint(VOCABULARY, (chunks, rest), generator=generator)  # (P, L)
    ways = (partial(encode_whole, model, before, behind), partial(encode_shared, model, before, behind))
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        whole, shared = (way() for way in ways)
        error = float((whole - shared).abs().max() / whole.abs().max())
        if error > (1e-4 if whole.dtype == torch.float32 else 0.1):
            raise AssertionError(f"the last vectors differ by {error:.1e} of the largest value")
        for _ in range(repeats):
            for way, taken in zip(ways, times, strict=True):
                start = perf_counter()
                way()
                taken.append(1e3 * (perf_counter() - start) / chunks)
    return median(times[0]), median(times[1])


def encode_whole(model: Any, before: Tensor, behind: Tensor) -> Tensor:
    """Encode the prefix with every chunk. Shapes: (1, S), (P, L) -> (P, H)."""
    ids = torch.cat([before.expand(len(behind), -1), behind], dim=1)  # (P, S + L)
    last: Tensor = model(input_ids=ids, use_cache=False).last_hidden_state[:, -1]
    return last


def encode_shared(model: Any, before: Tensor, behind: Tensor) -> Tensor:
    """Encode the prefix once; every chunk reads its keys and values. Shapes: as `encode_whole`."""
    kept = model(input_ids=before, use_cache=True).past_key_values
    kept = copy.copy(kept)
    kept.batch_repeat_interleave(len(behind))
    last: Tensor = model(input_ids=behind, past_key_values=kept, use_cache=True).last_hidden_state[:, -1]
    return last


if __name__ == "__main__":
    sys.exit(main())
