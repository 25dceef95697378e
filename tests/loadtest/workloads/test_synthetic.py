"""Synthetic workloads: reproducible, and of the requested lengths."""

import statistics
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.workloads.synthetic import MAX_WORDS, make_up, parse_lengths, words


@pytest.fixture(scope="module")
def tokenizer(tiny_backbone: Path) -> Tokenizer:
    loaded = Tokenizer.from_file(str(tiny_backbone / "tokenizer.json"))
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def token_counts(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    return [len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def test_every_word_is_one_token(tokenizer: Tokenizer) -> None:
    assert len(set(words())) == len(words()) > 800
    assert set(token_counts(tokenizer, list(words()))) == {1}


def test_the_same_seed_makes_the_same_calls_and_another_seed_others() -> None:
    one, again, other = (make_up(5, 3, parse_lengths("uniform:5:40"), 6, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.calls != other.calls


def test_documents_have_the_lengths_in_tokens(tokenizer: Tokenizer) -> None:
    def lengths(given: str) -> list[int]:
        workload = make_up(100, 10, parse_lengths(given), 6, seed=3)
        assert {len(call.documents) for call in workload.calls} == {10}
        assert set(token_counts(tokenizer, [call.query for call in workload.calls])) == {6}
        return token_counts(tokenizer, [each.text for call in workload.calls for each in call.documents])

    assert set(lengths("constant:70")) == {70}
    uniform = lengths("uniform:20:1400")
    assert (min(uniform) < 40, max(uniform) > 1380, min(uniform) >= 20, max(uniform) <= 1400) == (True,) * 4
    assert statistics.mean(uniform) == pytest.approx(710, rel=0.06)
    lognormal = lengths("lognormal:300:0.8:2000")
    assert statistics.median(lognormal) == pytest.approx(300, rel=0.08)
    assert statistics.mean(lognormal) == pytest.approx(300 * 2.718 ** (0.8**2 / 2), rel=0.1)
    assert max(lognormal) == 2000


@pytest.mark.parametrize(
    "given",
    [
        "",
        "constant",
        "constant:many",
        "constant:0",
        "constant:1.5",
        "uniform:9",
        "uniform:9:3",
        "lognormal:9:0:100",
        "lognormal:100:1:9",
        "normal:5:1",
        "constant:2000000",
        "constant:nan",
    ],
)
def test_an_invalid_distribution_is_refused(given: str) -> None:
    with pytest.raises(LoadtestError, match=f"lengths {given!r}"):
        parse_lengths(given)


def test_a_workload_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(LoadtestError, match="fewer calls"):
        make_up(MAX_WORDS // 1000 + 1, 1, parse_lengths("constant:1000"), 6, seed=1)
