"""What each family's aggregator costs beside the encoder: `python -m farrank_bench.aggregators`.

A real server of each family, BERT-base in size, answers one call with full documents; its own timings and its
memory are what is reported. Weights are random: neither time nor memory depends on them.
"""

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from farrank_bench.corpus_calls import call_of
from farrank_bench.report import heading
from farrank_bench.served import resident_mib, watched_memory
from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_loadtest.markdown import markdown_table
from farrank_loadtest.workloads import Call
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.location import EMBEDDED, locate
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_server.indexing.pydoc_corpus import read_pydoc

BERT_BASE = """{
  "model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768, "num_hidden_layers": 12,
  "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522,
  "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0
}"""
QUERY = "how do I read a large compressed file line by line without loading all of it"
TIMEOUT_S = 3600.0
WARM_UP_DOCUMENTS = 2
HEADS = ("family", "chunks a document", "encoder, s", "aggregator, s", "share", "memory beyond, MiB")
NOTES = (
    "every family at BERT-base size (110M parameters, random weights), encoder in {precision}, aggregator in "
    "fp32; one call of documents with at least 1,431 tokens each; times are the server's own, memory is what "
    "it takes beyond its state after a call of 2 documents"
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call took. Times in seconds, memory in MiB."""

    family: str
    chunks: int
    encoder_s: float
    aggregator_s: float
    memory_mib: float

    @property
    def share(self) -> float:
        """The aggregator's time over the encoder's."""
        return self.aggregator_s / self.encoder_s


def main() -> None:
    """Measure family after family and print the table."""
    parser = argparse.ArgumentParser(prog="farrank_bench.aggregators", description=__doc__)
    parser.add_argument("--documents", type=int, default=100, help="documents of the call")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="the encoder's")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--out", type=Path, help="write the report here, too")
    arguments = parser.parse_args()
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        backbone = _backbone(Path(folder) / "bert-base")
        call = call_of(QUERY, _documents(arguments.documents))
        for family in arguments.families:
            costs.append(measure(family, backbone, call, Path(folder) / "ranker", arguments.precision))
            print("  ".join(_cells(costs[-1])), flush=True)
    command = f"python -m farrank_bench.aggregators --documents {arguments.documents}"
    command += f" --precision {arguments.precision}"
    notes = NOTES.format(precision=arguments.precision)
    report = heading("The aggregators beside the encoder", command, notes)
    report += "\n" + markdown_table(HEADS, [_cells(cost) for cost in costs]) + "\n"
    print(report)
    if arguments.out:
        arguments.out.write_text(report)


def measure(family: str, backbone: Path, call: Call, folder: Path, precision: str) -> Cost:
    """Serve an untrained ranker of the family and call it once."""
    save_ranker(new_ranker(family, backbone, pretrained=False), folder)
    arguments = ["--ranker", f"{family}={folder}", "--log-level", "warning", "--set", "cache_bytes=0"]
    arguments += ["--set", "limits.max_queued_tokens=10000000"]
    arguments += ["--precision", precision]
    with spawned_server(arguments) as server, Client(server.address) as client:
        shutil.rmtree(folder)
        client.rerank(call.query, call.texts[:WARM_UP_DOCUMENTS], timeout_s=TIMEOUT_S)
        before_mib = resident_mib(server.process.pid)
        with watched_memory(server.process.pid, every_s=0.05) as samples:
            ranking = client.rerank(call.query, call.texts, timeout_s=TIMEOUT_S)
    timings = ranking.timings
    return Cost(
        family,
        ranking.usage.chunks // len(call.texts),
        timings.inference_ns / 1e9,
        timings.aggregation_ns / 1e9,
        max(samples) - before_mib,
    )


def _backbone(folder: Path) -> Path:
    """BERT-base's shape with a real tokenizer."""
    folder.mkdir()
    for path in locate(EMBEDDED).folder.glob("*token*.json"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(BERT_BASE)
    return folder


def _documents(count: int) -> tuple[str, ...]:
    """Different texts of at least 1,431 tokens: a token has at most some 7 characters here."""
    texts = [document.text for document in read_pydoc() if len(document.text) > 12_000]
    return tuple(texts[n % len(texts)][n // len(texts) : 10_000] for n in range(count))


def _cells(cost: Cost) -> tuple[str, ...]:
    return (
        f"`{cost.family}`",
        f"{cost.chunks}",
        f"{cost.encoder_s:.1f}",
        f"{cost.aggregator_s:.2f}",
        f"{cost.share:.1%}",
        f"{cost.memory_mib:.0f}",
    )


if __name__ == "__main__":
    main()
