"""The cost of texts without word boundaries for a tokenizer: memory, time, and a thread's longest step.

python -m farrank_bench.hostile_texts
python -m farrank_bench.hostile_texts --megabytes 64 --tokenizers /models/xlm-roberta-base
"""

import argparse
import base64
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from farrank_bench.collection_memory import peak_mib
from farrank_rankers.files.model_files import EMBEDDED, locate
from farrank_rankers.tokenizer import TextTokenizer, TokenizerFiles

VOCABULARY = 8000
NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class TextFigures:
    """The figures of a process that reads a text and keeps its tokens. `grown` is in MiB, without the text.

    `longest_s` is the processor time of the longest step. A thread can go on for that long after its caller
    has gone, if it has a core.
    """

    tokens: int
    read_s: float
    longest_s: float
    grown: float


def _letters(alphabet: str, size: int) -> str:
    """Draw random letters with at most `size` bytes in total."""
    count = size // max(len(each.encode()) for each in alphabet)
    return "".join(random.Random(1).choices(alphabet, k=count))


_PROSE = " ".join(topics.values())
TEXTS: Mapping[str, Callable[[int], str]] = {
    "prose": lambda size: (_PROSE * (size // len(_PROSE) + 1))[:size],
    "one mark": lambda size: "!" * size,
    "one sign": lambda size: "中" * (size // 3),
    "signs": lambda size: _letters("的一是不了人我在有他这中文漢字", size),
    "base64": lambda size: base64.b64encode(random.Random(1).randbytes(size * 3 // 4)).decode(),
    "letters": lambda size: _letters("abcdefghijklmnopqrstuvwxyz", size),
    "digits": lambda size: _letters("0123456789", size),
    "emoji": lambda size: _letters("😀👍🎉🚀", size),
    "one combining mark": lambda size: "e" + "\u0301" * (size // 2),
    "combining marks": lambda size: "e" + _letters("\u0301\u0323", size),
    "spaces": lambda size: " " * size,
    "dropped": lambda size: "\x00" * size,
}


def byte_pairs() -> str:
    """Train a byte-level BPE on Python's documentation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(topics.values(), trainer)
    return tokenizer.to_str()


def unigram() -> str:
    """Train a unigram model on Python's documentation, with a mark before each word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(topics.values(), trainer)
    return tokenizer.to_str()


TRAINED: Mapping[str, Callable[[], str]] = {"byte-pairs": byte_pairs, "unigram": unigram}


def open_tokenizer(name: str) -> TextTokenizer:
    """Train or open a tokenizer. `name` is a kind or a folder; "embedded" is the embedded WordPiece."""
    if name in TRAINED:
        return TextTokenizer(TokenizerFiles(TRAINED[name]()))
    return TextTokenizer(TokenizerFiles.read(locate(EMBEDDED).folder if name == "embedded" else Path(name)))


def read_text(tokenizer: str, text: str, size: int) -> TextFigures:
    """Read a text of `size` bytes in this process."""
    opened, made = open_tokenizer(tokenizer), TEXTS[text](size)
    opened.read(made[:100_000], NO_LIMIT)
    Path("/proc/self/clear_refs").write_text("5")
    before, started_s = peak_mib(), time.perf_counter()
    steps, last_s, longest_s = opened.steps(made, NO_LIMIT), time.process_time(), 0.0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            tokens = len(done.value)
            break
        now_s = time.process_time()
        last_s, longest_s = now_s, max(longest_s, now_s - last_s)
    return TextFigures(tokens, time.perf_counter() - started_s, longest_s, peak_mib() - before)


def read_elsewhere(tokenizer: str, text: str, size: int) -> TextFigures:
    """Read a text in a new process.

    Raises: CalledProcessError if it fails. Its message is on standard error.
    """
    command = [sys.executable, "-m", "farrank_bench.hostile_texts", "--read", tokenizer, text, str(size)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return TextFigures(**json.loads(done.stdout))


def main(arguments: list[str] | None = None) -> int:
    """Measure each text with each tokenizer and print a table."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.hostile_texts", description=__doc__)
    kinds = ["embedded", *TRAINED]
    parser.add_argument("--megabytes", type=int, default=16, help="size of each text (%(default)s)")
    parser.add_argument(
        "--tokenizers",
        nargs="+",
        default=kinds,
        help=f"{', '.join(kinds)}, or folders; default all of these kinds",
    )
    parser.add_argument("--texts", nargs="+", choices=list(TEXTS), default=list(TEXTS), metavar="TEXT")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.read:
        tokenizer, text, size = args.read
        print(json.dumps(asdict(read_text(tokenizer, text, int(size)))))
        return 0
    print("| tokenizer | text | tokens | read, s | longest step, ms of a core | peak memory, MiB |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for tokenizer, text in product(args.tokenizers, args.texts):
        found = read_elsewhere(tokenizer, text, args.megabytes * 10**6)
        print(
            f"| {tokenizer} | {text} | {found.tokens:,} | {found.read_s:.1f} | "
            f"{found.longest_s * 1e3:.0f} | {found.grown:.0f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
