"""PARADE's transformers compared with transformers' own BertModel, over an explicit sequence per document."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.errors import SourceError, SpecError, WeightsError
from farrank_rankers.family import (
    EvidenceKind,
    ParadePretrOptions,
    ParadeQueryOptions,
    ParadeRandOptions,
    TransformerShape,
)
from farrank_rankers.features import Features, batched
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.papers import BERT, count_parameters, on_meta, paper_models
from farrank_rankers.ranker import Ranker
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

MakeModel = Callable[..., Path]
SaveAndOpen = Callable[[Ranker, str, Sequence[str]], Ranker]
Vector = list[float]
QUERY = "neural query"
DOCUMENTS = [
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world; tokens score its model, unlike documents elsewhere",
    "hello world",
    "",
    "windows slide over the long text and its passages: hello search engine, hello model, hello score",
]
CHUNKING = Chunking("sliding", 16, 10, 44)
RAND, PRETR, WITH_QUERY = "parade-transf-rand", "parade-transf-pretr", "parade-transf-pretr-q"


class Case(NamedTuple):
    family: str
    use_separators: bool = True
    width: int = 24
    pad_query_to: int | None = None


CASES = [
    Case(RAND),
    Case(RAND, use_separators=False),
    Case(PRETR),
    Case(PRETR, width=32),
    Case(PRETR, use_separators=False),
    Case(WITH_QUERY),
    Case(WITH_QUERY, width=32, pad_query_to=12),
    Case(WITH_QUERY, pad_query_to=12),
    Case(WITH_QUERY, use_separators=False),
]
OPTIONS = {RAND: ParadeRandOptions, PRETR: ParadePretrOptions, WITH_QUERY: ParadeQueryOptions}

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


@pytest.fixture(scope="session")
def minilm(make_model: MakeModel) -> Callable[[int], Path]:
    """Make cross-encoders of 3 layers and 64 positions, in any width, like a MiniLM and a BERT-base."""
    made: dict[int, Path] = {}

    def folder(width: int) -> Path:
        if width not in made:
            sizes = {"num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 40}
            # Weights wide enough to reveal mistakes, but not so wide that rounding errors grow.
            changes = {"hidden_size": width, "initializer_range": 0.3}
            made[width] = make_model("bert", positions=64, **sizes, **changes)
        return made[width]

    return folder


@pytest.fixture
def make(cross_encoder: Path, minilm: Callable[[int], Path]) -> Callable[[Case], Ranker]:
    def made(case: Case) -> Ranker:
        source = None if case.family == RAND else minilm(case.width)
        options = OPTIONS[case.family](use_separators=case.use_separators)
        ranker = new_ranker(
            case.family,
            cross_encoder,
            CHUNKING,
            seed=5,
            max_query_tokens=8,
            pad_query_to=case.pad_query_to,
            options=options,
            aggregator_backbone=source,
        ).eval()
        with torch.no_grad():  # BERT's small random weights would hide mistakes
            for name, weight in ranker.aggregator.named_parameters():
                if case.family == RAND and "LayerNorm" not in name and name.startswith("transformer.bert"):
                    weight.mul_(15)
        return ranker

    return made


def by_hand(
    ranker: Ranker,
    query: list[Vector],
    chunks: list[Vector | None],
    pad_query_to: int,
    use_separators: bool,
) -> float:
    """Score one document: the sequence as in the paper, with transformers' BertModel.

    A chunk that is left out (None) leaves its position empty.
    """
    weights = ranker.aggregator.state_dict()
    bert = {
        name.removeprefix("transformer.bert."): weight
        for name, weight in weights.items()
        if name.startswith("transformer.bert.")
    }
    positions, width = bert["embeddings.position_embeddings.weight"].shape
    model = BertModel(
        BertConfig(
            vocab_size=1,
            hidden_size=width,
            num_hidden_layers=2 if ranker.spec.family == RAND else 3,
            num_attention_heads=ranker.backbone_config["num_attention_heads"]
            if ranker.spec.family == RAND
            else 2,
            intermediate_size=ranker.backbone_config["intermediate_size"]
            if ranker.spec.family == RAND
            else 40,
            max_position_embeddings=positions,
        ),
        add_pooling_layer=False,
    ).eval()
    model.set_input_embeddings(None)
    model.load_state_dict(bert)

    def projected(vector: Vector) -> list[float]:
        if "transformer.project.weight" not in weights:
            return vector
        found = weights["transformer.project.weight"] @ torch.tensor(vector)
        moved: Vector = (found + weights["transformer.project.bias"]).tolist()
        return moved

    separator = [(weights["transformer.separator"].tolist(), 0, 1)] if use_separators else []
    sequence = [(weights["transformer.first"].tolist(), 0, 1), *separator]  # vector, segment, attended
    if query:
        sequence += [(projected(vector), 0, 1) for vector in query]
        sequence += [([0.0] * width, 0, 0)] * max(0, pad_query_to - len(query))
        sequence += separator
    sequence += [([0.0] * width, 1, 0) if vector is None else (projected(vector), 1, 1) for vector in chunks]
    sequence += separator
    vectors, segments, attended = zip(*sequence, strict=True)
    with torch.inference_mode():
        output = model(
            inputs_embeds=torch.tensor([vectors]),
            token_type_ids=torch.tensor([segments]),
            attention_mask=torch.tensor([attended]),
        )
    first = output.last_hidden_state[0, 0].tolist()
    products = [w * x for w, x in zip(weights["head.linear.weight"][0].tolist(), first, strict=True)]
    return float(sum(products) + weights["head.linear.bias"].item())


@every_case
def test_scores_follow_the_formula(
    cross_encoder: Path, literally: Callable[[Path], Any], make: Callable[[Case], Ranker], case: Case
) -> None:
    ranker, backbone = make(case), literally(cross_encoder)
    query = backbone.tokens(QUERY)
    padding, separators = case.pad_query_to or 0, case.use_separators
    seen = []
    for document, found in zip(DOCUMENTS, ranker.score(QUERY, DOCUMENTS), strict=True):
        encoded = [backbone.pair(query, chunk, padding) for chunk in backbone.sliding(document, 16, 10, 44)]
        asked = encoded[0][1 : 1 + len(query)] if case.family == WITH_QUERY else []
        chunks = [vectors[0] for vectors in encoded]
        expected = by_hand(ranker, asked, chunks, padding, separators)
        effects = [0.0]
        if len(chunks) > 1:
            rest = [[*chunks[:index], None, *chunks[index + 1 :]] for index in range(len(chunks))]
            effects = [expected - by_hand(ranker, asked, left, padding, separators) for left in rest]
        assert found.score == pytest.approx(expected, rel=0, abs=1e-5)
        assert list(found.chunk_scores) == pytest.approx(effects, rel=0, abs=1e-5)
        assert found.deciding == max(range(len(effects)), key=lambda chunk: found.chunk_scores[chunk])
        seen.append(found.score)
    assert ranker.aggregator.evidence is EvidenceKind.LEAVE_ONE_OUT
    assert len({round(score, 3) for score in seen}) == len(DOCUMENTS)


def features_of(ranker: Ranker, documents: list[str]) -> list[Features]:
    """Return the chunks of each document, encoded one by one."""
    reader = ranker.reader
    query = reader.read_query(QUERY)
    found = []
    with torch.inference_mode():
        for document in documents:
            rows = [
                reader.chunk_input(query, chunk) for chunk in reader.split(reader.read_document(document))
            ]
            encoded = [
                ranker.encoder(
                    *(
                        torch.from_numpy(array)[None].long()
                        for array in (row.input_ids, row.roles, row.token_type_ids)
                    )
                )
                for row in rows
            ]
            first = encoded[0]
            roles = None if first.roles is None else torch.cat([row.roles for row in encoded])
            found.append(Features(torch.cat([row.vectors for row in encoded]), roles))
    return found


@every_case
def test_documents_of_a_batch_stand_alone(make: Callable[[Case], Ranker], case: Case) -> None:
    ranker = make(case)
    documents = features_of(ranker, DOCUMENTS)
    with torch.inference_mode():
        features, mask = batched(documents)
        vectors = features.vectors.clone()
        vectors[~mask] = torch.nan
        if features.roles is not None:
            vectors[features.roles == Role.PADDING] = torch.inf
        scores, evidence = ranker.aggregator.explain(Features(vectors, features.roles), mask)
        for row, document in enumerate(documents):
            alone = ranker.aggregator.explain(*batched([document]))
            chunks = len(document.vectors)
            torch.testing.assert_close(scores[row], alone.scores[0], rtol=0, atol=1e-5)
            torch.testing.assert_close(evidence[row, :chunks], alone.chunk_scores[0], rtol=0, atol=1e-5)
            assert (evidence[row, chunks:] == -torch.inf).all()


@every_case
def test_gradients_reach_every_weight(make: Callable[[Case], Ranker], case: Case) -> None:
    ranker = make(case).train()
    ids = torch.randint(5, 100, (6, 12))
    roles = torch.tensor([Role.SPECIAL, Role.QUERY, Role.QUERY, Role.SPECIAL] + [Role.DOCUMENT] * 8)
    features = ranker.encoder(ids, roles.expand(6, 12), torch.zeros_like(ids))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    vectors = features.vectors.unflatten(0, (2, 3))
    vectors = torch.where(mask.reshape(2, 3, *[1] * (vectors.dim() - 2)), vectors, torch.nan)
    roles_of = None if features.roles is None else features.roles.unflatten(0, (2, 3))
    ranker.aggregator(Features(vectors, roles_of), mask).sum().backward()
    for name, weight in ranker.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
    reached = {
        name for name, weight in ranker.named_parameters() if weight.grad is not None and weight.grad.any()
    }
    assert "encoder.backbone.encoder.layer.0.attention.self.query.weight" in reached
    assert "aggregator.transformer.bert.encoder.layer.1.output.dense.weight" in reached
    assert "aggregator.transformer.first" in reached
    assert ("aggregator.transformer.separator" in reached) == case.use_separators
    assert ("aggregator.transformer.project.weight" in reached) == (case.family != RAND and case.width == 24)
    assert "aggregator.head.linear.weight" in reached


@every_case
def test_an_artifact_gives_the_same_scores_to_the_bit(
    make: Callable[[Case], Ranker], save_and_open: SaveAndOpen, case: Case
) -> None:
    ranker = make(case)
    save_and_open(ranker, QUERY, DOCUMENTS)


@pytest.mark.parametrize("pretrained", [True, False])
def test_rand_starts_from_the_backbones_special_tokens(cross_encoder: Path, pretrained: bool) -> None:
    ranker = new_ranker(RAND, cross_encoder, seed=2, pretrained=pretrained)
    vocabulary = json.loads((cross_encoder / "tokenizer.json").read_text())["model"]["vocab"]
    words = load_file(cross_encoder / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    if not pretrained:
        words = ranker.encoder.backbone.get_input_embeddings().weight  # type: ignore[operator]
    transformer = ranker.aggregator.get_submodule("transformer")
    assert torch.equal(transformer.first, words[vocabulary["[CLS]"]])  # type: ignore[arg-type]
    assert torch.equal(transformer.separator, words[vocabulary["[SEP]"]])  # type: ignore[arg-type]
    assert not torch.equal(transformer.first, transformer.separator)  # type: ignore[arg-type]


def test_rand_without_word_embeddings_of_its_width(make_model: MakeModel) -> None:
    """ELECTRA's word embeddings may be narrower than its vectors."""
    narrow = new_ranker(RAND, make_model("electra", embedding_size=16), CHUNKING, max_query_tokens=8).eval()
    assert narrow.score(QUERY, DOCUMENTS)[0].score == pytest.approx(
        narrow.score(QUERY, DOCUMENTS[:1])[0].score, abs=1e-6
    )
    wide = make_model("electra", embedding_size=32)
    words = load_file(wide / "model.safetensors")["electra.embeddings.word_embeddings.weight"]
    first = new_ranker(RAND, wide).aggregator.get_parameter("transformer.first")
    assert any(torch.equal(first, row) for row in words)


@pytest.mark.parametrize("family", [PRETR, WITH_QUERY])
def test_pretr_starts_from_the_checkpoint(
    cross_encoder: Path, minilm: Callable[[int], Path], family: str
) -> None:
    ranker = new_ranker(family, cross_encoder, CHUNKING, max_query_tokens=8, aggregator_backbone=minilm(24))
    checkpoint = AutoModelForSequenceClassification.from_pretrained(minilm(24)).bert.state_dict()
    bert = ranker.aggregator.get_submodule("transformer.bert").state_dict()
    for name, weight in bert.items():
        assert torch.equal(weight, checkpoint[name]), name
    assert isinstance(ranker.spec.options, ParadePretrOptions | ParadeQueryOptions)
    shape = TransformerShape(layers=3, heads=2, width=24, intermediate=40, positions=64)
    assert ranker.spec.options.transformer == shape
    assert ranker.spec.provenance["transformer"] == minilm(24).name
    random = new_ranker(
        family, cross_encoder, CHUNKING, max_query_tokens=8, aggregator_backbone=minilm(24), pretrained=False
    )
    assert random.spec.options == ranker.spec.options
    assert random.version != ranker.version


def test_learned_vectors_and_projection_are_initialised_as_published(cross_encoder: Path) -> None:
    width = 1024
    shape = TransformerShape(layers=1, heads=1, width=width, intermediate=8)
    options = ParadePretrOptions(transformer=shape)
    aggregator = new_ranker(PRETR, cross_encoder, options=options).aggregator
    for name in ("first", "separator"):
        vector = aggregator.get_parameter(f"transformer.{name}").detach()
        assert abs(vector.mean().item()) < 4 / width  # four standard deviations of the mean
        assert vector.std().item() == pytest.approx(width**-0.5, rel=0.1)
    project = aggregator.get_submodule("transformer.project")
    assert isinstance(project, nn.Linear)
    assert (project.in_features, project.out_features) == (32, width)
    assert project.weight.abs().max().item() == pytest.approx((6 / (32 + width)) ** 0.5, rel=0.01)
    assert project.bias is not None


def test_more_chunks_than_positions_are_refused(cross_encoder: Path, minilm: Callable[[int], Path]) -> None:
    def many(family: str, tokens: int, **changes: Any) -> Ranker:
        source = None if family == RAND else minilm(24)
        chunking = Chunking("sliding", 10, 1, tokens)
        return new_ranker(
            family, cross_encoder, chunking, max_query_tokens=8, aggregator_backbone=source, **changes
        )

    message = (
        r"chunking\.max_document_tokens is 519: with a window of 10 and a stride of 1 that may be 510 chunks"
        r"; the positions of the aggregator's transformer hold at most 509"
    )
    with pytest.raises(SpecError, match=message):
        many(RAND, 519)
    many(RAND, 518)
    with pytest.raises(SpecError, match="the positions of the aggregator's transformer hold at most 61"):
        many(PRETR, 71)
    longest = many(PRETR, 70).eval().score("query", ["hello " * 70])[0]
    assert len(longest.chunks) == 61
    with pytest.raises(SpecError, match="hold at most 52"):
        many(WITH_QUERY, 62)
    assert len(many(WITH_QUERY, 61).eval().score("query " * 8, ["hello " * 70])[0].chunks) == 52
    with pytest.raises(SpecError, match="hold at most 48"):
        many(WITH_QUERY, 61, pad_query_to=12)
    # Without a limit of its own a ranker reads as many chunks as it has positions for, and says what it cuts.
    whole = many(PRETR, WHOLE_DOCUMENT).eval().score("query", ["hello " * 90], count_tokens=True)[0]
    assert (len(whole.chunks), whole.tokens_cut) == (61, 20)
    few = many(PRETR, WHOLE_DOCUMENT, options={"trained_chunks": 5})
    assert few.spec.most_chunks() == len(few.eval().score("query", ["hello " * 90])[0].chunks) == 5
    with pytest.raises(SpecError, match="trained_chunks is 0; it must be at least 1"):
        many(PRETR, WHOLE_DOCUMENT, options={"trained_chunks": 0})


def test_an_artifact_refuses_more_chunks_when_opened(make: Callable[[Case], Ranker], tmp_path: Path) -> None:
    save_ranker(make(Case(PRETR)), tmp_path)
    with pytest.raises(SpecError, match=r"chunking\.max_document_tokens is 5000"):
        open_ranker(tmp_path, max_document_tokens=5000)


def test_aggregator_backbones_that_do_not_fit_are_named(
    cross_encoder: Path, make_model: MakeModel, tmp_path: Path
) -> None:
    def made(source: Path | str, family: str = PRETR) -> Ranker:
        return new_ranker(family, cross_encoder, aggregator_backbone=source)

    with pytest.raises(
        SourceError, match="model_type is 'roberta'; the transformer of an aggregator has 'bert'"
    ):
        made(make_model("roberta"))
    with pytest.raises(
        SourceError, match="hidden_act is 'relu'; the transformer of an aggregator has 'gelu'"
    ):
        made(make_model("bert", hidden_act="relu"))
    with pytest.raises(SourceError, match="nobody/nowhere is neither a folder nor a model from the hub"):
        made("nobody/nowhere")
    with pytest.raises(
        SpecError, match=r"aggregator_backbone is .*; it must be none: family maxp has no such"
    ):
        made(cross_encoder, "maxp")
    with pytest.raises(
        SpecError, match=r"aggregator_backbone is .*; it must be none: family parade-transf-rand has no such"
    ):
        made(cross_encoder, RAND)
    (tmp_path / "config.json").write_bytes((cross_encoder / "config.json").read_bytes())
    with pytest.raises(WeightsError, match=r"model\.safetensors is missing"):
        made(tmp_path)


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"heads": 5}, "heads is 5; it must divide the width of 384"),
        ({"width": "wide"}, "width is 'wide'; it must be a whole number"),
        ({"depth": 3}, r"options\.transformer has the unknown key depth"),
        (7, r"options\.transformer is 7; it must be an object"),
    ],
)
def test_shapes_in_ranker_json_are_checked(transformer: Any, message: str) -> None:
    spec = json.loads(RankerSpec(PRETR, "b", CHUNKING).to_json())
    spec["options"]["transformer"] = transformer
    with pytest.raises(SpecError, match=message):
        RankerSpec.from_json(json.dumps(spec))


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "llama"])
def test_rand_is_of_its_backbones_sizes(make_backbone: MakeModel, architecture: str) -> None:
    inside = "hidden_dim" if architecture == "distilbert" else "intermediate_size"
    folder = make_backbone(architecture, num_attention_heads=8, **{inside: 56})

    def bert(**options: int) -> BertConfig:
        ranker = new_ranker(RAND, folder, options=options, pretrained=False)
        config: BertConfig = ranker.aggregator.get_submodule("transformer.bert").config
        return config

    assert (bert().num_attention_heads, bert().intermediate_size, bert().hidden_size) == (8, 56, 32)
    assert bert(heads=2).num_attention_heads == 2
    with pytest.raises(SpecError, match="heads is 5; it must divide the width of 32"):
        bert(heads=5)
    with pytest.raises(SpecError, match="heads is 'all'; it must be a whole number"):
        bert(heads="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "published"),
    [(RAND, 148), (PRETR, 132), (WITH_QUERY, 132), ("parade-transf-pretr-lateir", 148)],
)
def test_parameters_agree_with_table_6(family: str, published: float) -> None:
    """The paper gives 132 to 148 million for PARADE Transformer, the 2022 version 132 for PRETR-L6.

    These figures include a table of word embeddings that no aggregator reads. Farrank's rankers do not have
    it.
    """
    model = next(
        model
        for model in paper_models().values()
        if model.spec.family == family and model.spec.backbone == BERT
    )
    ours = on_meta(model)
    assert count_parameters(ours) / 1e6 == pytest.approx(published, rel=0.02)
    unread = 30522 * (768 if family == RAND else 2 * 384 if family.endswith("lateir") else 384)
    assert sum(weight.numel() for weight in ours.parameters()) == count_parameters(ours) - unread
    assert not [name for name in ours["aggregator"].state_dict() if "word_embeddings" in name]
