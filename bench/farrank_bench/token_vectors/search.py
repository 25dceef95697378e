"""A server that reads token vectors from an index, and the memory of a store of a million documents."""

import ctypes
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from farrank_bench.report import Row, below, spread
from farrank_bench.rounds import ContenderFailed
from farrank_bench.served import resident_mib, serving
from farrank_bench.stored_documents import anonymous_mib, texts_of
from farrank_bench.token_vectors.codecs import UNTRAINED
from farrank_client import Client, Document, Ranking
from farrank_demo.questions import load_questions
from farrank_indexes.parts import PartWriter
from farrank_indexes.token_vector_store import TokenVectorStore
from farrank_rankers.family import MaxSimOptions
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.save import save_ranker
from farrank_rankers.reader import Reader
from farrank_runtimes.cores import usable_cores
from farrank_runtimes.maxsim import compared_vectors, score_token_vectors
from farrank_runtimes.token_codecs import fit

DOCUMENTS, TOKENS, CANDIDATES = 200, 1431, 100
WITHIN_MS = 60.0
TIMEOUT_S = 600.0
QUESTIONS, ROUNDS = 60, 5
# Words of nearly all documents, so that each search finds enough of them.
_COMMON = " return value method object"
_MILLION, _VECTORS, _WIDTH = 1_000_000, 10, 128


def searching(ranker: Path | None, folder: Path) -> list[Row]:
    """Index documents with their token vectors, then search and rerank by id, one call after the other.

    Without a ranker, it is one that compares punctuation, too: the documentation has much of it.
    """
    if ranker is None:
        ranker = folder / "compares-all-tokens"
        comparing_all = open_ranker(UNTRAINED)
        reader = comparing_all.reader
        options = replace(reader.spec.options_as(MaxSimOptions), skipped=())
        comparing_all.reader = Reader(
            replace(reader.spec, options=options), reader.tokenizer, reader.backbone
        )
        save_ranker(comparing_all, ranker)
    texts = texts_of(open_reader(str(ranker)), DOCUMENTS, TOKENS)
    collection, index = folder / "documents.jsonl", folder / "index"
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    collection.write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "farrank_cli", "index", str(collection), "--encode", str(ranker)]
    started_s = time.perf_counter()
    if subprocess.run([*command, "--encode-precision", "quick", "--out", str(index)]).returncode:
        raise ContenderFailed("farrank index failed; its output is above")
    indexed_s = time.perf_counter() - started_s
    questions = [each.text + _COMMON for each in load_questions()][:QUESTIONS]
    named = [Document(f"d{number}", index="it") for number in range(CANDIDATES)]
    threads = ("--threads", str(usable_cores()))
    started_s = time.perf_counter()
    with (
        serving(ranker, "--index", f"it={index}", *threads) as server,
        Client(server.address) as client,
    ):
        healthy_s = time.perf_counter() - started_s

        def search(question: str) -> Ranking:
            return client.search_and_rerank(question, k=CANDIDATES, timeout_s=TIMEOUT_S)

        def rerank(question: str) -> Ranking:
            return client.rerank(question, named, timeout_s=TIMEOUT_S)

        first_ms, _ = _timed(search, questions[0])
        before_mib = resident_mib(server.process.pid)
        searched, last = _rounds(search, questions)
        reranked, _ = _rounds(rerank, questions)
        grown_mib = resident_mib(server.process.pid) - before_mib
    timings = last.timings
    stages = {
        "first stage": timings.first_stage_ns,
        "reading": timings.tokenization_ns,
        "encoding the query": timings.inference_ns,
        "scoring": timings.aggregation_ns,
        "in all": timings.total_ns,
    }
    calls = 2 * ROUNDS * QUESTIONS
    vectors = sum(each.stat().st_size for each in index.glob("token-vectors/*/*/*"))
    return [
        below(f"search for {CANDIDATES} candidates and rerank them: p50, ms", searched, WITHIN_MS, ".1f"),
        below(f"rerank {CANDIDATES} documents by id: p50, ms", reranked, WITHIN_MS, ".1f"),
        Row("the last search's stages, ms", ", ".join(f"{of} {ns / 1e6:.1f}" for of, ns in stages.items())),
        Row("the first search, ms", f"{first_ms:.1f}"),
        Row("start to healthy, s", f"{healthy_s:.1f}"),
        Row(
            f"growth of the server in {calls} calls, with mapped pages, MiB",
            f"{grown_mib:.0f}",
        ),
        Row("store, KB a document", f"{vectors / DOCUMENTS / 1e3:.1f}"),
        Row(f"indexing {DOCUMENTS} documents, s", f"{indexed_s:.0f}"),
    ]


def _rounds(ask: Callable[[str], Ranking], questions: list[str]) -> tuple[list[float], Ranking]:
    """Ask all questions in each round. Returns the rounds' medians in ms, and the last answer."""
    medians = []
    for _ in range(ROUNDS):
        taken = []
        for question in questions:
            ms, found = _timed(ask, question)
            if found.usage.stored_documents != CANDIDATES or found.usage.pairs != 1:
                raise ContenderFailed(
                    f"{found.usage.stored_documents} of {CANDIDATES} documents were read from the store"
                )
            taken.append(ms)
        medians.append(float(np.median(taken)))
    return medians, found


def _timed(ask: Callable[[str], Ranking], question: str) -> tuple[float, Ranking]:
    started_s = time.perf_counter()
    found = ask(question)
    return (time.perf_counter() - started_s) * 1e3, found


def a_million(folder: Path) -> list[Row]:
    """Write a store of short documents at once, then score some of them, again and again."""
    store = _write_a_million(folder / "million")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # of writing
    before_mib = anonymous_mib()
    opened = TokenVectorStore(store, "bench", verify=False)
    open_mib = anonymous_mib() - before_mib
    chosen = random.Random(1)
    query = torch.nn.functional.normalize(torch.randn(32, _WIDTH), dim=-1)
    ms = []
    for _ in range(300):
        places = [chosen.randrange(_MILLION) for _ in range(CANDIDATES)]
        started_s = time.perf_counter()
        documents = [compared_vectors(opened.read(place).features) for place in places]
        score_token_vectors(documents, [query] * CANDIDATES, MaxSimOptions())
        ms.append((time.perf_counter() - started_s) * 1e3)
    grown_mib = anonymous_mib() - before_mib
    size = sum(each.stat().st_size for each in store.glob("*/*"))
    return [
        Row(f"{_MILLION:,} documents of {_VECTORS} vectors, GB", f"{size / 1e9:.2f}"),
        Row("memory of the opened store (without mapped files), MiB", f"{open_mib:.0f}"),
        Row("memory after 300 calls of 100 documents (without mapped files), MiB", f"{grown_mib:.0f}"),
        Row("reading and scoring 100 documents at random, ms", spread(ms, ".1f")),
    ]


def _write_a_million(store: Path) -> Path:
    generator = np.random.default_rng(1)
    sample = generator.standard_normal((40_000, _WIDTH), dtype=np.float32)
    codec = fit("int8", sample / np.linalg.norm(sample, axis=1, keepdims=True))
    facts = {
        "format": 2,
        "version": "bench",
        "max_document_tokens": 2**24,
        "precision": "fp32",
        "codec": "int8",
        "width": _WIDTH,
    }
    names = ("ends.i64", "texts.u32", "windows.u32", "vectors.int8")
    writer = PartWriter(store, "token-vectors.json", facts, 0, names)
    numbers = np.arange(1, _MILLION + 1, dtype="<i8")
    writer.write("ends.i64", np.column_stack([numbers * _VECTORS, numbers]))
    writer.write("texts.u32", np.tile(np.array([50, 0, 0, _VECTORS], "<u4"), (_MILLION, 1)))
    writer.write("windows.u32", np.tile(np.array([_VECTORS, 0, 50], "<u4"), (_MILLION, 1)))
    block = generator.integers(-127, 128, (_MILLION // 100, _VECTORS * _WIDTH), dtype=np.int8)
    for _ in range(100):
        writer.write("vectors.int8", block)
    writer.documents = _MILLION
    parameters = codec.parameters.tolist()
    vectors = _MILLION * _VECTORS
    writer.finish("bench", vectors=vectors, windows=_MILLION, cut=0, parameters=parameters)
    return store
