"""Late interaction compared with transformers' own models, one chunk and document at a time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.families import late_interaction
from farrank_rankers.family import EvidenceKind, LateInteractionOptions
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role, collate

MakeModel = Callable[..., Path]
SaveAndOpen = Callable[[Ranker, str, Sequence[str]], Ranker]
Vector = list[float]
FAMILY = "parade-transf-pretr-lateir"
QUERY = "neural query"
DOCUMENTS = [
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world; tokens score its model, unlike documents elsewhere",
    "hello world",
    "",
    "windows slide over the long text and its passages: hello search engine, hello model, hello score",
]
CHUNKING = Chunking("sliding", 16, 10, 44)


class Case(NamedTuple):
    interaction_width: int
    aggregator_width: int
    use_separators: bool = True


# No projection; one before the interaction; one before each; one before the aggregator; no separators.
CASES = [Case(32, 32), Case(24, 24), Case(24, 40), Case(32, 24), Case(24, 40, use_separators=False)]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))


@pytest.fixture(scope="session")
def small(make_model: MakeModel) -> Callable[[int, int], Path]:
    """Make cross-encoders of few layers and 64 positions."""
    made: dict[tuple[int, int], Path] = {}

    def folder(layers: int, width: int) -> Path:
        if (layers, width) not in made:
            # Weights wide enough to reveal mistakes, but not so wide that rounding errors grow.
            sizes = {"num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 40}
            changes = {"hidden_size": width, "initializer_range": 0.2}
            made[layers, width] = make_model("bert", positions=64, **sizes, **changes)
        return made[layers, width]

    return folder


@pytest.fixture
def make(cross_encoder: Path, small: Callable[[int, int], Path]) -> Callable[[Case], Ranker]:
    def made(case: Case) -> Ranker:
        return new_ranker(
            FAMILY,
            cross_encoder,
            CHUNKING,
            seed=4,
            max_query_tokens=8,
            options=LateInteractionOptions(use_separators=case.use_separators),
            interaction_backbone=small(2, case.interaction_width),
            aggregator_backbone=small(3, case.aggregator_width),
        ).eval()

    return made


class ByHand:
    """One of the aggregator's transformers, with its parameters."""

    def __init__(self, ranker: Ranker, name: str, layers: int) -> None:
        state = ranker.aggregator.state_dict()
        self.weights = {
            key.removeprefix(f"{name}."): weight
            for key, weight in state.items()
            if key.startswith(f"{name}.")
        }
        bert = {
            key.removeprefix("bert."): weight
            for key, weight in self.weights.items()
            if key.startswith("bert.")
        }
        positions, width = bert["embeddings.position_embeddings.weight"].shape
        config = BertConfig(
            vocab_size=1,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            intermediate_size=40,
            max_position_embeddings=positions,
        )
        self.model = BertModel(config, add_pooling_layer=False).eval()
        self.model.set_input_embeddings(None)
        self.model.load_state_dict(bert)

    def first(self, *parts: tuple[Sequence[Vector | None], int]) -> Vector:
        """Run [C] [S] part [S] … part [S], each part with its segment. None leaves its position empty."""
        separator = [(self.weights["separator"], 0, 1)] if "separator" in self.weights else []
        sequence = [(self.weights["first"], 0, 1), *separator]
        for vectors, segment in parts:
            for vector in vectors:
                if vector is None:
                    sequence.append((torch.zeros_like(self.weights["first"]), segment, 0))
                else:
                    sequence.append((self.projected(vector), segment, 1))
            sequence += separator
        with torch.inference_mode():
            output = self.model(
                inputs_embeds=torch.stack([vector for vector, _, _ in sequence])[None],
                token_type_ids=torch.tensor([[segment for _, segment, _ in sequence]]),
                attention_mask=torch.tensor([[attended for _, _, attended in sequence]]),
            )
        found: Vector = output.last_hidden_state[0, 0].tolist()
        return found

    def projected(self, vector: Vector) -> Tensor:
        if "project.weight" not in self.weights:
            return torch.tensor(vector)
        found: Tensor = self.weights["project.weight"] @ torch.tensor(vector) + self.weights["project.bias"]
        return found


@every_case
def test_scores_follow_the_formula(
    cross_encoder: Path, literally: Callable[[Path], Any], make: Callable[[Case], Ranker], case: Case
) -> None:
    ranker, backbone = make(case), literally(cross_encoder)
    interaction, transformer = ByHand(ranker, "interaction", 2), ByHand(ranker, "transformer", 3)
    cls, sep = backbone.tokenizer.cls_token_id, backbone.tokenizer.sep_token_id
    weight, bias = ranker.aggregator.get_submodule("head.linear").state_dict().values()

    def text(tokens: list[int], segment: int) -> list[Vector]:
        """Encode [CLS] [SEP] text [SEP] and keep all its vectors, as the published code does."""
        ids = [cls, sep, *tokens, sep]
        segments = [0, 0] + [segment] * (len(tokens) + 1)
        found: list[Vector] = backbone.encode(ids, segments, [1] * len(ids))
        return found

    def score(vectors: Sequence[Vector | None]) -> float:
        first = transformer.first((vectors, 1))
        return float(sum(w * x for w, x in zip(weight[0].tolist(), first, strict=True)) + bias.item())

    query = text(backbone.tokens(QUERY), 0)
    seen = []
    for document, found in zip(DOCUMENTS, ranker.score(QUERY, DOCUMENTS), strict=True):
        chunks = backbone.sliding(document, 16, 10, 44)
        read = [interaction.first((query, 0), (text(chunk, 1), 0)) for chunk in chunks]
        expected = score(read)
        effects = [0.0]
        if len(read) > 1:
            effects = [
                expected - score([*read[:left_out], None, *read[left_out + 1 :]])
                for left_out in range(len(read))
            ]
        assert found.score == pytest.approx(expected, rel=0, abs=1e-5)
        assert list(found.chunk_scores) == pytest.approx(effects, rel=0, abs=1e-5)
        seen.append((found.score, len(chunks)))
    assert [chunks for _, chunks in seen] == [4, 1, 1, 2]
    assert len({round(value, 3) for value, _ in seen}) == len(DOCUMENTS)
    assert ranker.aggregator.evidence is EvidenceKind.LEAVE_ONE_OUT


def test_texts_are_framed_as_pairs_without_a_first(make: Callable[[Case], Ranker]) -> None:
    reader = make(CASES[0]).reader
    cls, sep = reader.tokenizer.ids("[CLS]").item(), reader.tokenizer.ids("[SEP]").item()
    query = reader.read_query(QUERY)
    asked = reader.query_input(query)
    assert asked.input_ids.tolist() == [cls, sep, *query.ids.tolist(), sep]
    assert asked.token_type_ids.tolist() == [0] * asked.tokens
    assert asked.roles.tolist() == [Role.SPECIAL] * 2 + [Role.QUERY] * len(query) + [Role.SPECIAL]
    (chunk,) = reader.split(reader.read_document("hello world"))
    read = reader.chunk_input(None, chunk)
    assert read.input_ids.tolist() == [cls, sep, *chunk.ids.tolist(), sep]
    assert read.token_type_ids.tolist() == [0, 0] + [1] * (len(chunk) + 1)
    assert read.roles.tolist() == [Role.SPECIAL] * 2 + [Role.DOCUMENT] * len(chunk) + [Role.SPECIAL]
    (nothing,) = reader.split(reader.read_document(""))
    assert reader.chunk_input(None, nothing).input_ids.tolist() == [cls, sep, sep]
    assert reader.max_input_tokens == 3 + 16


def test_other_tokenizers_bring_their_own_special_tokens(make_model: MakeModel) -> None:
    ranker = new_ranker(FAMILY, make_model("roberta"), CHUNKING, max_query_tokens=8).eval()
    tokens = ranker.reader.tokenizer.tokenizer
    start, end = tokens.token_to_id("<s>"), tokens.token_to_id("</s>")
    query = ranker.reader.read_query(QUERY)
    found = ranker.reader.query_input(query)
    assert found.input_ids.tolist() == [start, end, *query.ids.tolist(), end]
    together = ranker.score(QUERY, DOCUMENTS)
    for document, expected in zip(DOCUMENTS, together, strict=True):
        alone = ranker.score(QUERY, [document], batch_size=1)[0]
        assert alone.score == pytest.approx(expected.score, rel=0, abs=1e-5)


def test_limits_are_those_of_pairs(tiny_backbone: Path, cross_encoder: Path) -> None:
    spec = new_ranker(FAMILY, tiny_backbone, pretrained=False).spec
    assert spec.chunking == Chunking("sliding", 150, 100, WHOLE_DOCUMENT)
    assert spec.max_query_tokens == 32
    fitted = new_ranker(FAMILY, cross_encoder)  # of 128 positions, 3 of which are for special tokens
    assert fitted.spec.chunking == Chunking("sliding", 125, 83, WHOLE_DOCUMENT)
    assert fitted.reader.max_input_tokens == 128


def encoded(ranker: Ranker, documents: list[str]) -> tuple[list[Features], Features]:
    """Return each document's chunks, encoded together, and the query."""
    reader = ranker.reader

    def rows(inputs: list[Any]) -> list[Features]:
        batch = collate(inputs, reader.pad_id)
        found: Features = ranker.encoder(*(torch.from_numpy(array) for array in batch))
        return found.rows()

    read = [
        stacked(rows([reader.chunk_input(None, chunk) for chunk in reader.split(reader.read_document(text))]))
        for text in documents
    ]
    return read, stacked(rows([reader.query_input(reader.read_query(QUERY))]) * len(documents))


@every_case
def test_documents_of_a_batch_stand_alone_in_groups_of_any_size(
    make: Callable[[Case], Ranker], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make(case)
    with torch.inference_mode():
        documents, query = encoded(ranker, DOCUMENTS)
        features, mask = batched(documents)
        assert features.roles is not None
        assert query.roles is not None
        vectors = features.vectors.clone()
        vectors[~mask] = torch.nan
        vectors[features.roles == Role.PADDING] = torch.inf
        asked = torch.nn.functional.pad(query.vectors, (0, 0, 0, 5), value=torch.nan)
        padded = Features(asked, torch.nn.functional.pad(query.roles, (0, 5), value=Role.PADDING))
        alone = [
            ranker.aggregator.explain(*batched([document]), Features(query.vectors[:1], query.roles[:1]))
            for document in documents
        ]
        for positions in (1, 70, 2**14):
            monkeypatch.setattr(late_interaction, "GROUP_POSITIONS", positions)
            scores, evidence = ranker.aggregator.explain(Features(vectors, features.roles), mask, padded)
            for row, (document, expected) in enumerate(zip(documents, alone, strict=True)):
                chunks = len(document.vectors)
                torch.testing.assert_close(scores[row], expected.scores[0], rtol=0, atol=1e-5)
                torch.testing.assert_close(
                    evidence[row, :chunks], expected.chunk_scores[0], rtol=0, atol=1e-5
                )
                assert (evidence[row, chunks:] == -torch.inf).all()


def test_the_interaction_reads_no_more_positions_than_a_group_has(
    make: Callable[[Case], Ranker], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = make(CASES[1])
    sizes = []

    def record(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        sizes.append((len(inputs[0].vectors), sum(part.vectors.shape[1] for part in inputs)))

    ranker.aggregator.get_submodule("interaction").register_forward_pre_hook(record)
    monkeypatch.setattr(late_interaction, "GROUP_POSITIONS", 70)
    ranker.score(QUERY, DOCUMENTS)
    assert sum(rows for rows, _ in sizes) == 4 + 1 + 1 + 2
    assert all(rows * length <= 70 for rows, length in sizes)
    assert max(rows for rows, _ in sizes) > 1


@every_case
def test_gradients_reach_every_weight(make: Callable[[Case], Ranker], case: Case) -> None:
    ranker = make(case).train()
    documents, query = encoded(ranker, [DOCUMENTS[0], DOCUMENTS[3]])
    features, mask = batched(documents)
    vectors = torch.where(mask[:, :, None, None], features.vectors, torch.nan)
    ranker.aggregator(Features(vectors, features.roles), mask, query).sum().backward()
    for name, weight in ranker.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
    reached = {
        name for name, weight in ranker.named_parameters() if weight.grad is not None and weight.grad.any()
    }
    assert {
        "encoder.backbone.encoder.layer.0.attention.self.query.weight",
        "aggregator.interaction.bert.encoder.layer.0.output.dense.weight",
        "aggregator.interaction.first",
        "aggregator.transformer.bert.encoder.layer.2.output.dense.weight",
        "aggregator.transformer.first",
        "aggregator.head.linear.weight",
    } <= reached
    assert ("aggregator.interaction.project.weight" in reached) == (case.interaction_width != 32)
    assert ("aggregator.transformer.project.weight" in reached) == (
        case.interaction_width != case.aggregator_width
    )


@every_case
def test_an_artifact_gives_the_same_scores_to_the_bit(
    make: Callable[[Case], Ranker], save_and_open: SaveAndOpen, case: Case
) -> None:
    ranker = make(case)
    save_and_open(ranker, QUERY, DOCUMENTS)


def test_both_transformers_start_from_their_checkpoints(
    make: Callable[[Case], Ranker], small: Callable[[int, int], Path]
) -> None:
    ranker = make(Case(24, 40))
    assert isinstance(ranker.spec.options, LateInteractionOptions)
    assert ranker.spec.options.interaction.layers == 2
    assert ranker.spec.options.transformer.layers == 3
    for name, (layers, width) in {"interaction": (2, 24), "transformer": (3, 40)}.items():
        checkpoint = BertModel.from_pretrained(small(layers, width), add_pooling_layer=False).state_dict()
        for key, weight in ranker.aggregator.get_submodule(f"{name}.bert").state_dict().items():
            assert torch.equal(weight, checkpoint[key]), (name, key)
        assert ranker.spec.provenance[name] == small(layers, width).name


def test_options_that_do_not_fit_are_named(cross_encoder: Path, small: Callable[[int, int], Path]) -> None:
    def made(window: int, query: int, tokens: int = 80) -> Ranker:
        chunking = Chunking("sliding", window, 1, tokens)
        return new_ranker(
            FAMILY,
            cross_encoder,
            chunking,
            max_query_tokens=query,
            interaction_backbone=small(2, 24),
            aggregator_backbone=small(3, 24),
        )

    message = (
        r"chunking\.window is 47 and max_query_tokens 8: with 10 special vectors that makes 65 positions; "
        "the interaction has 64"
    )
    with pytest.raises(SpecError, match=message):
        made(47, 8)
    assert made(46, 8).eval().score("query " * 8, ["hello " * 80])[0].chunk_scores
    with pytest.raises(SpecError, match=r"max_document_tokens is 80: .* may be 71 chunks; the positions"):
        made(10, 8)
    with pytest.raises(SpecError, match=r"pad_query_to is 12; it must be none"):
        new_ranker(FAMILY, cross_encoder, CHUNKING, max_query_tokens=8, pad_query_to=12)
    with pytest.raises(
        SpecError, match=r"interaction_backbone is .*; it must be none: family maxp has no such"
    ):
        new_ranker("maxp", cross_encoder, interaction_backbone=cross_encoder)


def test_a_query_and_roles_are_needed(make: Callable[[Case], Ranker]) -> None:
    aggregator = make(CASES[0]).aggregator
    mask = torch.ones(1, 1, dtype=torch.bool)
    features = Features(torch.zeros(1, 1, 4, 32), torch.full((1, 1, 4), Role.DOCUMENT))
    with pytest.raises(ValueError, match="query is None"):
        aggregator(features, mask)
    with pytest.raises(ValueError, match="features have no roles"):
        aggregator(Features(torch.zeros(1, 1, 32)), mask, Features(torch.zeros(1, 32)))
