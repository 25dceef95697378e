"""The papers' models at full size: their names, their limits, and their numbers of parameters."""

import pytest

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.family import FAMILIES, BiEncoderOptions, VectorOptions
from farrank_rankers.papers import BACKBONES, PaperModel, count_parameters, on_meta, paper_models
from farrank_rankers.spec import RankerSpec

# Table 6 of arXiv 2207.01262 in millions, by the last part of a model's name.
TABLE_6 = {
    "-bert": (110, 110),
    "-electra": (110, 110),
    "-deberta": (184, 184),
    "-longformer": (149, 149),
    "-bigbird": (127, 127),
    "-jina": (137, 137),
    "-mosaic": (137, 137),
    "-tinyllama": (1034, 1034),
    "-e5-4k": (110, 110),
}
NAMES = (
    *(f"firstp{backbone}" for backbone in TABLE_6),
    *(f"longp-{name}" for name in ("longformer", "bigbird", "jina", "mosaic", "tinyllama", "e5-4k")),
    *(f"maxp-{name}" for name in ("bert", "electra", "deberta")),
    *(f"parade-attn-{name}" for name in ("bert", "electra", "deberta")),
    *(f"parade-transf-rand-l2-{name}" for name in ("bert", "electra")),
    "parade-transf-pretr-l6-bert",
    "parade-transf-pretr-q-l6-bert",
    "parade-transf-pretr-lateir-l6-bert",
    "parade-avg-bert",
    "parade-max-bert",
    "avgp-bert",
    "sump-bert",
    "cedr-drmm-bert",
    "cedr-knrm-bert",
    "cedr-pacrr-bert",
    "neural-model1-bert",
)
MODELS = paper_models()
# The special tokens of a pair. RoBERTa has one more than BERT.
BESIDE_TEXTS = {"longformer": 4}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> PaperModel:
    return MODELS[request.param]


def test_every_model_of_the_paper_is_there() -> None:
    assert sorted(MODELS) == sorted(NAMES)
    others = {"cross-encoder", "maxsim", "yes-no"}
    assert {model.spec.family for model in MODELS.values()} == FAMILIES.keys() - others
    assert {model.spec.backbone for model in MODELS.values()} == BACKBONES.keys()


def test_parameters_are_those_of_table_6(model: PaperModel) -> None:
    module = on_meta(model)
    assert all(tensor.is_meta for tensor in module.parameters())
    low, high = next(millions for end, millions in TABLE_6.items() if model.name.endswith(end))
    if model.name.startswith("parade-transf"):
        low, high = 132, 148
    assert 0.98 * low <= count_parameters(module) / 1e6 <= 1.02 * high


def test_limits_are_the_papers(model: PaperModel) -> None:
    spec, chunking = model.spec, model.spec.chunking
    assert spec.max_query_tokens == 32
    assert spec.pad_query_to == (32 if spec.plan == "pair" else None)
    assert chunking.max_document_tokens == 1431
    if model.name.startswith(("maxp", "sump", "parade")):
        assert (chunking.kind, chunking.window, chunking.stride) == ("sliding", 150, 100)
    elif model.name.startswith(("avgp", "cedr", "neural")):
        assert (chunking.kind, chunking.window) == ("disjoint", 477)
    else:
        assert (chunking.kind, chunking.window) == ("first", 1431 if "longp" in model.name else 477)


def test_the_backbone_holds_what_is_read(model: PaperModel) -> None:
    facts = BackboneFacts.from_config(model.config)
    if facts.max_positions is not None:
        beside = BESIDE_TEXTS.get(facts.architecture, 3)
        assert 32 + model.spec.chunking.window + beside <= facts.max_positions


def test_pooling_is_the_backbones(model: PaperModel) -> None:
    options = model.spec.options
    if isinstance(options, VectorOptions):
        mean = model.name.endswith(("-jina", "-tinyllama"))
        assert options.pooling == ("mean" if mean else "cls")
    if isinstance(options, BiEncoderOptions):
        assert (options.pooling, options.normalize, options.position_step) == ("mean", True, 8)
        assert (options.query_prefix, options.document_prefix) == ("query: ", "passage: ")


def test_bigbird_reads_fully_or_sparsely_by_its_window() -> None:
    kinds = {
        name: getattr(on_meta(MODELS[name])["encoder"].backbone, "attention_type")  # noqa: B009
        for name in ("firstp-bigbird", "longp-bigbird")
    }
    assert kinds == {"firstp-bigbird": "original_full", "longp-bigbird": "block_sparse"}


def test_a_spec_is_written_and_read(model: PaperModel) -> None:
    assert RankerSpec.from_json(model.spec.to_json()) == model.spec
