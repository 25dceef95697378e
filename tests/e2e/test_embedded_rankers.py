"""The rankers that come with the project: small, with their origin, served by name, exported."""

from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_exporters.export import artifact_of, export_ranker
from farrank_rankers.family import HeadLayer, MaxSimOptions
from farrank_rankers.files.model_files import embedded_rankers, locate
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import weights_digest
from farrank_server.config.schema import ListenConfig, RankerConfig, ServerConfig
from farrank_server.replica import Replica
from support.exported_rankers import CALIBRATION, MEASURED

FAMILIES = {
    "firstp": "firstp",
    "maxp": "maxp",
    "maxsim": "maxsim",
    "parade-attn": "parade-attn",
    "parade-rand-l2": "parade-transf-rand",
}
RANKERS = tuple(FAMILIES)
# The others have the embedded model's own encoder.
TRAINED = tuple(name for name in RANKERS if name != "maxsim")
QUERY = "when was the lighthouse of Alexandria built?"
ANSWER = "The lighthouse of Alexandria was built between 284 and 246 BC, in the reign of Ptolemy II. "
OF_BREAD = "Bread is baked from flour, water, salt and yeast, and has been eaten for thousands of years. "
OF_COTTON = "Cotton grows in warm countries and is spun into yarn, of which cloth for shirts is woven. "
# The answer is beyond the first chunk of 128 tokens.
TEXTS = [OF_BREAD * 24, OF_BREAD * 15 + ANSWER + OF_COTTON * 8, OF_COTTON * 24, ANSWER]
BREAD, DEEP, _, SHORT = range(4)


def test_these_come_with_the_project() -> None:
    assert tuple(embedded_rankers()) == RANKERS


def test_together_they_are_small_and_share_one_encoder() -> None:
    folders = [locate(f"embedded:{name}").folder for name in RANKERS]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) < 12e6
    encoders = {weights_digest(open_ranker(f"embedded:{name}").encoder.backbone) for name in TRAINED}
    assert len(encoders) == 1


def test_multi_vectors_are_those_of_the_embedded_model() -> None:
    ranker, embedded = open_ranker("embedded:maxsim"), open_ranker("embedded")
    assert weights_digest(ranker.encoder.backbone) == weights_digest(embedded.encoder.backbone)
    options = ranker.spec.options_as(MaxSimOptions)
    assert options.head == (HeadLayer("dense", 128, bias=False),)
    assert options.text_head == (HeadLayer("dense", 256, bias=False),)


@pytest.mark.parametrize("name", RANKERS)
def test_one_is_small_and_says_where_it_is_from(name: str) -> None:
    folder = locate(f"embedded:{name}").folder
    sizes = [path.stat().st_size for path in folder.iterdir()]
    assert sum(sizes) < 4e6
    spec = open_ranker(f"embedded:{name}").spec
    assert spec.family == FAMILIES[name]
    assert "CC BY-SA 4.0" in spec.provenance["data"]
    if name in TRAINED:
        assert "make experiment" in spec.provenance["command"]
        assert "Biased 0." in spec.provenance["MRR"]
    else:
        assert "farrank rankers new" in spec.provenance["command"]


async def test_they_are_served_by_name_and_say_where_the_answer_stands() -> None:
    config = ServerConfig(
        rankers={name: RankerConfig(f"embedded:{name}") for name in RANKERS},
        listen=ListenConfig(port=0, metrics_port=None),
    )
    request = pb.RerankRequest(query=QUERY, documents=[pb.Document(text=text) for text in TEXTS])
    async with Replica(config) as replica, grpc.aio.insecure_channel(replica.address) as channel:
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        found: dict[str, pb.RerankResponse] = {}
        request.options.depth.mode = pb.DEPTH_MODE_ALL
        for name in RANKERS:
            request.options.ranker = name
            found[name] = await service.Rerank(request, timeout=60)
    for name, answer in found.items():
        wanted = [each.score for each in open_ranker(f"embedded:{name}").score(QUERY, TEXTS)]
        for result in answer.results:
            assert result.score == pytest.approx(wanted[result.index], abs=1e-3)
        # The answer alone is best for all rankers. FirstP cannot see it deep inside a document.
        assert answer.results[0].index == SHORT
        deep = next(each for each in answer.results if each.index == DEEP)
        if name == "firstp":
            assert deep.score == pytest.approx(wanted[BREAD], abs=1e-3)
        else:
            assert answer.results[1].index == DEEP
            passage = deep.deciding_passage
            assert passage.start <= TEXTS[DEEP].index("246 BC") < passage.end


@pytest.mark.parametrize("name", ["parade-rand-l2", "maxsim"])
def test_one_is_exported(tmp_path: Path, name: str) -> None:
    """The one with the largest head, and the one whose encoder has layers of its own."""
    measured = replace(MEASURED, documents=MEASURED.documents[::2])
    with artifact_of(f"embedded:{name}", tmp_path / name) as (ranker, artifact):
        export = export_ranker(ranker, artifact, "onnx", "fp32", measured=measured, calibration=CALIBRATION)
    assert export.manifest.source_version == open_ranker(f"embedded:{name}").version
    assert {each.runtime for each in export.manifest.parity} == {"onnx", "openvino"}
    assert all(each.max_difference < 1e-4 for each in export.manifest.parity)
