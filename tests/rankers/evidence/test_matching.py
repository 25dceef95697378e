"""Values of sentences: words, their forms, scripts without spaces, weights."""

import pytest

from farrank_rankers.evidence.matching import QueryTerms, lowered


def value(terms: QueryTerms, text: str) -> float:
    small = lowered(text)
    return terms.value(terms.counts(small, 0, len(small)), len(small))


def test_rare_words_count_more_than_frequent_ones() -> None:
    document = lowered("the house of the river " * 200 + "a xylophone")
    terms = QueryTerms("the xylophone", [document])

    assert value(terms, "A XYLOPHONE is here") > value(terms, "the other one, the house")
    assert 0 < value(terms, "the xylophone") < 1


def test_a_form_of_a_word_counts_less_than_the_word() -> None:
    terms = QueryTerms("restoring", ["the castle was restored " * 50])

    whole, form = value(terms, "restoring it"), value(terms, "restored it")
    assert whole > form > value(terms, "a forestore") == 0


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("กรุงเทพ", "ในกรุงเทพมหานคร"),
        ("北京大学", "他在北京大学读书"),
        ("größe", "die GRÖSSE, Größe"),
        ("दिल्ली कहाँ है", "वह दिल्ली में है।"),
        ("don't", "They don’t, I don't"),
        ("os.path", "use path.join"),
    ],
)
def test_words_are_found_in_every_script(query: str, text: str) -> None:
    assert value(QueryTerms(query, [text]), text) > 0


def test_lowered_keeps_the_length() -> None:
    text = "İstanbul ΑΣ ẞ"
    assert len(lowered(text)) == len(text)
    assert lowered("ABC") == "abc"


def test_a_query_without_a_word_has_no_value() -> None:
    assert value(QueryTerms("?!", ["text"]), "text?!") == 0
    assert value(QueryTerms("text", []), "text") >= 0
