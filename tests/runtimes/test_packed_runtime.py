"""Streams through the runtime give the rankers' own scores, on a CPU and, if there is one, on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from farrank_rankers.family import FAMILIES
from farrank_rankers.features import Features, stacked
from farrank_rankers.files.open import open_ranker
from farrank_rankers.packed.attention_blocks import BLOCK
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import TokenStream, pack
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import OutOfMemory, Packing, Placement, Precision, Runtime
from farrank_runtimes.torch_runtime import TorchRuntime, open_torch
from support.runtime_scores import QUERY, TEXTS, scores_through

Test = TypeVar("Test", bound=Callable[..., None])


def needs_gpu(test: Test) -> Test:
    """Run a test where there is a CUDA device."""
    skipped = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
    marked: Test = pytest.mark.gpu(skipped(test))
    return marked


def on_cpu(ranker: Ranker, precision: Precision = "fp32") -> Runtime:
    return TorchRuntime(ranker, precision, "cpu", 1, plain_attention)


def inputs_of(ranker: Ranker, texts: list[str]) -> list[EncoderInput]:
    reader, dual = ranker.reader, ranker.spec.plan == "dual"
    query = None if dual else reader.read_query(QUERY)
    chunks = [chunk for text in texts for chunk in reader.split(reader.read_document(text))]
    return [reader.chunk_input(query, chunk) for chunk in chunks]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_rankers_own(tiny_rankers: dict[str, Path], family: str) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers[family]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers[family])
    assert scores_through(on_cpu(ranker), ranker.reader) == pytest.approx(wanted, abs=1e-5, rel=1e-5)


def test_half_precision_is_the_encoders_alone(tiny_rankers: dict[str, Path]) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers["maxp"]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers["maxp"], dtype=torch.bfloat16)
    found = scores_through(on_cpu(ranker, "bf16"), ranker.reader)
    assert found != wanted
    # bf16 has 8 bits of significand: an error of some 0.4% of the largest value in a sum.
    assert found == pytest.approx(wanted, abs=2e-2)


def test_rows_of_tokens_are_views_of_one_tensor(tiny_rankers: dict[str, Path]) -> None:
    ranker = open_ranker(tiny_rankers["cedr-knrm"])
    rows = on_cpu(ranker).encode(inputs_of(ranker, TEXTS)).rows()
    assert len(rows) > 1
    assert len({row.vectors.untyped_storage().data_ptr() for row in rows}) == 1


def test_its_capabilities_are_reported(tiny_rankers: dict[str, Path]) -> None:
    runtime = on_cpu(open_ranker(tiny_rankers["maxp"]))
    told = runtime.capabilities()
    assert (told.runtime, told.device, told.precision) == ("torch", "cpu", "fp32")
    assert (told.packed, told.queued) == (True, False)
    assert runtime.warm_up() > 0


@pytest.mark.parametrize("pad_query_to", [None, 40])
def test_warming_up_meets_every_kernel(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch, pad_query_to: int | None
) -> None:
    runtime = on_cpu(open_ranker(tiny_rankers["maxp"], pad_query_to=pad_query_to))
    encode = PackedEncoder.encode
    met: dict[bool, list[int]] = {}

    def noted(encoder: PackedEncoder, stream: TokenStream) -> Features:
        met.setdefault(stream.is_dense, []).append(sum(stream.bounds.lengths))
        return encode(encoder, stream)

    monkeypatch.setattr(PackedEncoder, "encode", noted)
    runtime.warm_up()
    # Padding inside a query changes scores, if a query can have any.
    assert set(met) == ({True} if pad_query_to is None else {True, False})
    for sizes in met.values():
        # FlexAttention has a kernel for less than a block of tokens. The first one for more must get a number
        # of blocks that no other dimension of a model has.
        assert min(sizes) < BLOCK
        assert -(-next(size for size in sizes if size >= BLOCK) // BLOCK) == 5


def test_a_batch_of_nothing_is_refused(tiny_rankers: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"^inputs is empty"):
        on_cpu(open_ranker(tiny_rankers["maxp"])).encode([])


def test_exhausted_memory_is_reported_and_survived(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker = open_ranker(tiny_rankers["maxp"])
    runtime, inputs = on_cpu(ranker), inputs_of(ranker, TEXTS)
    held: list[torch.Tensor] = []

    def too_much(encoder: PackedEncoder, stream: TokenStream) -> Features:
        held.append(torch.zeros(3))
        return Features(torch.empty(2**50))

    with monkeypatch.context() as patch:
        patch.setattr(PackedEncoder, "encode", too_much)
        with pytest.raises(OutOfMemory):
            runtime.encode(inputs)
    assert held
    assert len(runtime.encode(inputs).rows()) == len(inputs)


def test_cedr_leaves_every_layer_of_a_token(tiny_rankers: dict[str, Path]) -> None:
    for family, layers in (("cedr-knrm", 3), ("maxp", 1)):
        ranker = open_ranker(tiny_rankers[family])
        assert ranker.encoder.feature_values == layers * ranker.backbone_config["hidden_size"]


# The tests below need a GPU.


def on_gpu(family: Path, packing: Packing = "packed") -> tuple[Runtime, Ranker, str]:
    ranker = open_ranker(family, dtype=torch.bfloat16, device=torch.device("cuda:0"))
    runtime, form = open_torch(ranker, "bf16", Placement("cuda:0", packing=packing))
    return runtime, ranker, form


@needs_gpu
@pytest.mark.parametrize("family", FAMILIES)
def test_cuda_ranks_as_fp32_does(tiny_rankers: dict[str, Path], family: str) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers[family]).score(QUERY, TEXTS)]
    runtime, ranker, form = on_gpu(tiny_rankers[family], "auto")
    assert form.startswith("packed, ")
    assert (runtime.capabilities().packed, runtime.capabilities().queued) == (True, True)
    padded, _, _ = on_gpu(tiny_rankers[family], "padded")
    found, beside = scores_through(runtime, ranker.reader), scores_through(padded, ranker.reader)
    # Random heads amplify rounding as they amplify scores. Therefore the bound is a share of the scores'
    # spread, and the error of padded batches in bf16 is the reference for bf16.
    spread = max(wanted) - min(wanted)
    off = np.abs(np.subtract(found, wanted)).max()
    assert off <= max(2e-2, 0.05 * spread, 2 * np.abs(np.subtract(beside, wanted)).max())
    if spread > 0.5:  # otherwise a random model's scores are too close for an order
        assert kendalltau(found, wanted).statistic >= 0.9


@needs_gpu
@pytest.mark.parametrize("family", ["maxp", "cedr-knrm", "biencoder", "parade-transf-pretr-q"])
def test_a_second_batch_begun_before_the_first_is_read_changes_nothing(
    tiny_rankers: dict[str, Path], family: str
) -> None:
    runtime, ranker, _ = on_gpu(tiny_rankers[family])
    inputs = inputs_of(ranker, TEXTS)
    batches = [inputs, inputs[::-1], inputs[:3], inputs[2:]]
    alone = [[row.vectors.cpu() for row in runtime.encode(each).rows()] for each in batches]
    for _ in range(20):
        begun = [runtime.encode(each) for each in batches]
        # Four batches are begun while two have a stage, so the others have waited.
        for encoding, wanted in zip(begun, alone, strict=True):
            rows = encoding.rows()
            assert 0 < encoding.device_s() < 10
            for row, vectors in zip(rows, wanted, strict=True):
                assert torch.equal(row.vectors.cpu(), vectors)


@needs_gpu
def test_busy_seconds_of_batches_do_not_overlap(tiny_rankers: dict[str, Path]) -> None:
    runtime, ranker, _ = on_gpu(tiny_rankers["maxp"])
    inputs = inputs_of(ranker, TEXTS) * 20
    runtime.encode(inputs).rows()
    event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    first, last = event(enable_timing=True), event(enable_timing=True)
    first.record()
    first.synchronize()
    begun = [runtime.encode(inputs) for _ in range(10)]
    for encoding in begun:
        encoding.rows()
    last.record()
    last.synchronize()
    assert sum(encoding.device_s() for encoding in begun) <= first.elapsed_time(last) / 1e3


@needs_gpu
@pytest.mark.parametrize("family", ["parade-transf-pretr", "cedr-pacrr", "parade-transf-pretr-lateir"])
def test_documents_are_scored_while_a_batch_runs(tiny_rankers: dict[str, Path], family: str) -> None:
    runtime, ranker, _ = on_gpu(tiny_rankers[family])
    reader = ranker.reader
    dual = ranker.spec.plan == "dual"
    query = reader.query_input(reader.read_query(QUERY))
    asked = runtime.encode([query]).rows() if dual else None
    inputs = inputs_of(ranker, TEXTS[-1:])

    def scored() -> list[float]:
        return runtime.score([stacked(runtime.encode(inputs).rows())], asked).scores

    wanted = scored()
    for _ in range(20):
        document = stacked(runtime.encode(inputs).rows())
        # This process gets memory that is free again.
        running = runtime.encode(inputs * 50)
        assert runtime.score([document], asked).scores == wanted
        running.rows()


@needs_gpu
def test_exhausted_cuda_memory_is_reported_and_survived(tiny_rankers: dict[str, Path]) -> None:
    runtime, ranker, _ = on_gpu(tiny_rankers["cedr-knrm"])
    inputs = inputs_of(ranker, TEXTS)
    wanted = [row.vectors.cpu() for row in runtime.encode(inputs).rows()]
    before = torch.cuda.memory_allocated()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 64 * 2**20) / total)
    try:
        in_flight = runtime.encode(inputs)
        with pytest.raises(OutOfMemory):
            runtime.encode(inputs * 200)
        survived = [row.vectors.cpu() for row in in_flight.rows()]
        assert all(torch.equal(row, each) for row, each in zip(survived, wanted, strict=True))
        del in_flight
        # The failed batch's memory is free, except for the stage that it has enlarged.
        assert torch.cuda.memory_allocated() <= before + 32 * 2**20
        again = runtime.encode(inputs).rows()
        assert all(torch.equal(row.vectors.cpu(), each) for row, each in zip(again, wanted, strict=True))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_queries_with_expansion_tokens_are_padded(tmp_path: Path, model_type: str) -> None:
    """Nothing may attend to these tokens, and streams hide no token from others."""
    from support.multi_vector_models import DOCUMENTS, save_backbone, save_pylate
    from support.multi_vector_models import QUERY as ASKED

    folder = save_pylate(save_backbone(tmp_path / "base", model_type), tmp_path / "saved", document_length=20)
    wanted = [each.score for each in open_ranker(folder).score(ASKED, DOCUMENTS)]
    ranker = open_ranker(folder)
    reader, runtime = ranker.reader, on_cpu(ranker)
    query = reader.query_input(reader.read_query(ASKED))
    chunks = [reader.split(reader.read_document(text)) for text in DOCUMENTS]
    inputs = [reader.chunk_input(None, chunk) for each in chunks for chunk in each]
    with pytest.raises(ValueError, match="inputs have expansion tokens"):
        pack([*inputs, query])
    encoding = runtime.encode([inputs[0], query, *inputs[1:]])
    first, asked, *others = encoding.rows()
    assert encoding.device_s() > 0
    rows = iter([first, *others])
    documents = [stacked([next(rows) for _ in each]) for each in chunks]
    found = runtime.score(documents, [asked] * len(documents)).scores
    assert found == pytest.approx(wanted, abs=1e-5)
    (alone,) = runtime.encode([query]).rows()
    assert torch.allclose(alone.vectors, asked.vectors, atol=1e-6)
