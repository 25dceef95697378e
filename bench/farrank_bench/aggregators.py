"""The cost of each family's aggregator, compared with the encoder: `python -m farrank_bench.aggregators`.

A real server of each family, of BERT-base's size, answers one call with full documents. The report has its
own timings and its memory. Weights are random: neither time nor memory depends on them.
"""

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from farrank_bench.corpus_calls import call_of, read_corpus
from farrank_bench.report import Command, Heading, Row
from farrank_bench.served import resident_mib, serving, watched_memory
from farrank_client import Client
from farrank_loadtest.workloads import Call
from farrank_rankers.chunking import PAPERS_DOCUMENT_TOKENS
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.model_files import EMBEDDED, locate
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker

BERT_BASE = """{
  "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12,
  "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
  "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0
}"""
QUERY = "how do I read a large compressed file line by line without loading all of it"
TIMEOUT_S = 3600.0
WARM_UP_DOCUMENTS = 2
NOTES = (
    "every family at BERT-base size (110M parameters, random weights), encoder in {precision}, aggregator in "
    "fp32; one call of documents with at least 1,431 tokens each; times are the server's own, memory is the "
    "growth since a call of 2 documents; the figures are: chunks per document; seconds of the encoder; "
    "seconds of the aggregator and their share of the encoder's; MiB of growth"
)


def main() -> int:
    """Measure family after family and print the table."""
    command = Command("farrank_bench.aggregators", __doc__)
    command.options.add_argument("--documents", type=int, default=100, help="documents of the call")
    command.options.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="the encoder's precision"
    )
    command.options.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    given = command.parse(None)
    notes = NOTES.format(precision=given.precision)
    heading = Heading("Aggregators compared with the encoder", notes, one_table="Families")
    with tempfile.TemporaryDirectory() as folder:
        backbone = Path(folder) / "bert-base"
        # BERT-base's shape with a real tokenizer.
        backbone.mkdir()
        for path in locate(EMBEDDED).folder.glob("*token*.json"):
            shutil.copy(path, backbone)
        (backbone / "config.json").write_text(BERT_BASE)
        texts = read_corpus(12_000)
        # 10,000 characters have at least 1,431 tokens: a token has at most about 7 characters here.
        documents = [texts[n % len(texts)][n // len(texts) : 10_000] for n in range(given.documents)]
        call = call_of(QUERY, documents)
        parts = (
            (family, partial(measure, family, backbone, call, Path(folder) / "ranker", given.precision))
            for family in given.families
        )
        return command.report(heading, parts, given.out)


def measure(family: str, backbone: Path, call: Call, folder: Path, precision: str) -> list[Row]:
    """Serve an untrained ranker of the family and call it once."""
    save_ranker(
        new_ranker(family, backbone, pretrained=False, max_document_tokens=PAPERS_DOCUMENT_TOKENS), folder
    )
    settings = {"cache_bytes": 0, "limits.max_queued_tokens": 10_000_000}
    served = serving(folder, "--precision", precision, **settings)
    with served as server, Client(server.address) as client:
        shutil.rmtree(folder)
        client.rerank(call.query, call.texts[:WARM_UP_DOCUMENTS], depth="all", timeout_s=TIMEOUT_S)
        before_mib = resident_mib(server.process.pid)
        with watched_memory(server.process.pid, every_s=0.05) as samples:
            ranking = client.rerank(call.query, call.texts, depth="all", timeout_s=TIMEOUT_S)
    encoder_s, aggregator_s = ranking.timings.inference_ns / 1e9, ranking.timings.aggregation_ns / 1e9
    chunks, beyond_mib = ranking.usage.chunks // len(call.texts), max(samples) - before_mib
    share = aggregator_s / encoder_s
    return [Row(family, f"{chunks}; {encoder_s:.1f}; {aggregator_s:.2f} ({share:.1%}); {beyond_mib:.0f}")]


if __name__ == "__main__":
    sys.exit(main())
