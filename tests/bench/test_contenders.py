"""The contenders on a few pairs: a real server, a real process, and the measured model.

A tiny random model would give all documents nearly the same score, and hide an answer in another order.
"""

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from farrank_bench import peers
from farrank_bench.corpus_calls import (
    LONGEST_PAIR,
    MAX_QUERY_TOKENS,
    QUERIES,
    SHORTEST_PAIR,
    encoder_inputs,
    make_calls,
)
from farrank_bench.exporting import CrossEncoder, write_cross_encoder
from farrank_bench.modernbert import BASE, write_modernbert
from farrank_bench.offline import RuntimeAlone
from farrank_bench.own_server import start_to_healthy
from farrank_bench.peers import NAMED_BY, infinity_command, infinity_server, infinity_versions, predicting
from farrank_bench.rounds import ContenderFailed, Scores
from farrank_bench.served import score_served
from farrank_cli.spawn import spawned_server
from farrank_loadtest.workloads import Call
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement
from farrank_runtimes.torch_runtime import TorchRuntime


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    return write_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@pytest.fixture(scope="module")
def calls(made: CrossEncoder) -> list[Call]:
    return make_calls(made.ranker.reader, 2, 3, seed=2, pairs=True)


@pytest.fixture(scope="module")
def expected(made: CrossEncoder, calls: list[Call]) -> Scores:
    scores = tuple(
        tuple(each.score for each in made.ranker.score(call.query, call.texts, batch_size=1))
        for call in calls
    )
    assert np.ptp(scores, axis=1).min() > 1e-3
    return scores


def logits(scores: Scores) -> NDArray[np.float64]:
    """Peers return the sigmoid of a classifier's only label."""
    probabilities = np.array(scores)
    odds: NDArray[np.float64] = np.log(probabilities / (1 - probabilities))
    return odds


def test_pairs_are_read_whole(made: CrossEncoder, calls: list[Call]) -> None:
    reader = made.ranker.reader
    assert max(len(reader.tokenizer.read(query, LONGEST_PAIR)) for query in QUERIES) == MAX_QUERY_TOKENS
    more = make_calls(reader, 20, 3, seed=2, pairs=True)
    assert more[:2] == calls
    inputs = encoder_inputs(reader, more)
    lengths = [each.tokens for each in inputs]
    assert len(lengths) == 60
    assert min(lengths) >= SHORTEST_PAIR
    assert max(lengths) <= LONGEST_PAIR == reader.max_input_tokens
    assert min(lengths) < 100
    assert max(lengths) > 480
    for call in calls:
        assert not reader.read_query(call.query).tokens_cut
        assert not any(reader.read_document(text).characters_cut for text in call.texts)


def test_all_score_the_same_pairs_alike(made: CrossEncoder, calls: list[Call], expected: Scores) -> None:
    with spawned_server(["--ranker", f"m={made.artifact}", "--log-level", "warning"]) as server:
        served = score_served(server.address, "m", 3, calls)
        with pytest.raises(ContenderFailed, match="NOT_FOUND"):
            score_served(server.address, "other", 3, calls)
    np.testing.assert_allclose(served.scores, expected, atol=1e-5)
    assert served.count == 6
    with predicting(made.transformers, calls, threads=1) as predict:
        predicted = predict()
        assert predict().scores == predicted.scores
    np.testing.assert_allclose(logits(predicted.scores), expected, atol=1e-5)
    assert predicted.per_s == pytest.approx(6 / predicted.seconds)


def test_a_modernbert_is_the_same_for_all(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2}
    made = write_modernbert(tmp_path, small)
    backbone: Any = made.ranker.encoder.backbone
    assert (backbone.config.local_attention, backbone.config.global_attn_every_n_layers) == (128, 3)
    assert BASE["hidden_size"] == 768
    calls = make_calls(made.ranker.reader, 2, 3, seed=2, pairs=True)
    expected = [
        [each.score for each in made.ranker.score(call.query, call.texts, batch_size=1)] for call in calls
    ]
    runtime = open_ranker_runtime(str(made.artifact), {}, placement=Placement("cpu", 1))
    assert runtime.runtime.capabilities().packed
    bounds: dict[Literal["fp32", "bf16"], float] = {"fp32": 1e-5, "bf16": 2e-2}
    for precision, bound in bounds.items():
        with predicting(made.transformers, calls, 1, precision) as predict:
            np.testing.assert_allclose(logits(predict().scores), expected, atol=bound)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(NAMED_BY), reason=f"{NAMED_BY} names no infinity_emb to start")
def test_infinity_scores_the_same_pairs_alike(
    made: CrossEncoder, calls: list[Call], expected: Scores, tmp_path: Path
) -> None:
    command = infinity_command(tmp_path)
    assert "torch 2.13.0" in infinity_versions(command)
    with infinity_server(command, made.transformers, "m", 1, tmp_path) as address:
        scored = score_served(address, "m", 3, calls)
    np.testing.assert_allclose(logits(scored.scores), expected, atol=1e-5)
    with pytest.raises(ContenderFailed, match="unreachable"):
        score_served(address, "m", 3, calls)


def test_a_process_that_ended_is_a_failure(tmp_path: Path, calls: list[Call]) -> None:
    with predicting(tmp_path / "nothing", calls, threads=1) as predict:
        with pytest.raises(ContenderFailed, match="process ended"):
            predict()
        with pytest.raises(ContenderFailed, match="process ended"):
            predict()


def test_the_runtime_alone_encodes_every_pair_once(made: CrossEncoder, calls: list[Call]) -> None:
    scored = RuntimeAlone(
        TorchRuntime(made.ranker, "fp32"), encoder_inputs(made.ranker.reader, calls)
    ).score()
    assert scored.count == 6
    assert scored.seconds > 0


def test_a_start_is_timed(made: CrossEncoder) -> None:
    (row,) = start_to_healthy(made.artifact, threads=1, starts=1)
    assert row.aim == "below 10"
    assert 0.5 < float(row.measured.partition(" ")[0]) < 200


def test_infinity_that_is_not_there_says_why(
    made: CrossEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAMED_BY, str(tmp_path / "infinity_emb"))
    command = infinity_command(tmp_path)
    assert command == tmp_path / "infinity_emb"
    with pytest.raises(ContenderFailed, match="No such file"):
        infinity_versions(command)
    with (
        pytest.raises(ContenderFailed, match="No such file"),
        infinity_server(command, made.transformers, "m", 1, tmp_path),
    ):
        pass
    command.write_text("#!/bin/sh\necho starting; echo no model >&2; exit 1\n")
    command.chmod(0o755)
    with (
        pytest.raises(ContenderFailed, match="Infinity ended while it started: no model"),
        infinity_server(command, made.transformers, "m", 1, tmp_path),
    ):
        pass


def test_infinity_that_cannot_be_installed_says_why_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAMED_BY, raising=False)
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("infinity-emb==0.0.1\n")
    monkeypatch.setattr(peers, "CONSTRAINTS", constraints)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ContenderFailed, match=r"^pip failed: .*infinity-emb"):
        infinity_command(tmp_path)
    assert not (tmp_path / "infinity-0.0.78" / ".ready").exists()
    monkeypatch.setenv(NAMED_BY, "/opt/infinity_emb")
    assert infinity_command(tmp_path) == Path("/opt/infinity_emb")


def test_infinity_s_constraints_pin_all_with_torch_as_here() -> None:
    lines = peers.CONSTRAINTS.read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins["torch"] == "2.13.0"
    assert pins["infinity_emb"] == "0.0.78"
    assert all(version and " " not in version for version in pins.values())
