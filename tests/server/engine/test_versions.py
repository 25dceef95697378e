"""The loaded versions of a ranker: the choice of the one that answers, and when an old one is freed."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farrank_calls.errors import NotFound
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.engine.versions import Canary, Versions, split_version


@dataclass(eq=False)
class Ranker:
    """The parts of a loaded ranker that this is about."""

    name: str
    version: str
    calls: int = 0
    used_s: float = 0.0
    similarity: str | None = None

    @property
    def key(self) -> str:
        return f"{self.name}#{self.version}"

    @property
    def spec(self) -> object:
        return SimpleNamespace(similarity=self.similarity)

    @property
    def members(self) -> tuple["Ranker"]:
        return (self,)


@dataclass(eq=False)
class Ensemble:
    name: str
    version: str
    members: tuple[Ranker, ...]


def loaded(*scorers: Ranker | Ensemble) -> Versions:
    return Versions(cast(Any, scorers))


def canary(scorer: Ranker | Ensemble, share: float) -> Canary:
    return Canary(cast(Scorer, scorer), share)


QUERIES = [f"query {number}" for number in range(4000)]


def test_a_query_always_gets_the_same_version_and_larger_shares_keep_it() -> None:
    new = Ranker("it", "b1")
    of_share = {
        share: [query for query in QUERIES if canary(new, share).takes(query)]
        for share in (0.0, 0.1, 0.5, 1.0)
    }
    for share, taken in of_share.items():
        assert abs(len(taken) / len(QUERIES) - share) < 0.02
    assert {*of_share[0.1]} < {*of_share[0.5]} < {*of_share[1.0]} == {*QUERIES}
    # Another version takes other queries.
    others = {query for query in of_share[0.1] if canary(Ranker("it", "c1"), 0.1).takes(query)}
    assert len(others) < len(of_share[0.1]) / 2


def test_a_call_may_ask_for_a_version_by_its_begin() -> None:
    old, new = Ranker("it", "ab12"), Ranker("it", "ac34")
    versions = loaded(old, Ranker("other", "ab12"))
    assert versions.find("") is versions.find("it") is cast(Scorer, old)
    versions.begin_canary(canary(new, 0.0))
    assert versions.find("it", query="any") is cast(Scorer, old)
    assert versions.find("it", "ac") is cast(Scorer, new)
    assert versions.find("it", "ab12") is cast(Scorer, old)
    with pytest.raises(NotFound, match=r"no loaded version begins with 'x'; .* it are: ab12, ac34"):
        versions.find("it", "x")
    with pytest.raises(NotFound, match=r"2 loaded versions begin with 'a'"):
        versions.find("it", "a")
    with pytest.raises(NotFound, match=r"no ranker 'third' here; known are: it, other"):
        versions.find("third", "ab12")


def test_two_versions_of_the_same_weights_share_the_calls_for_them() -> None:
    old, new = Ranker("it", "ab12"), Ranker("it", "ab12")
    versions = loaded(old)
    versions.begin_canary(canary(new, 0.5))
    assert {id(versions.find("it", "ab", query)) for query in QUERIES[:50]} == {id(old), id(new)}


def test_a_call_may_ask_for_a_version_by_its_role() -> None:
    old, new = Ranker("it", "ab12"), Ranker("it", "ab12")
    versions = loaded(old)
    assert versions.find("it", "serving") is cast(Scorer, old)
    with pytest.raises(NotFound, match=r"no loaded version begins with 'canary'; .* it are: ab12$"):
        versions.find("it", "canary")
    for share in (0.0, 1.0):
        versions.begin_canary(canary(new, share))
        assert versions.find("it", "canary") is versions.find("", "canary") is cast(Scorer, new)
        assert versions.find("it", "serving") is cast(Scorer, old)


def test_a_canary_that_serves_or_ends_frees_the_other_after_its_last_call() -> None:
    old, new = Ranker("it", "1"), Ranker("it", "2")
    versions = loaded(old)
    entered, freed = list[Any](), list[Any]()
    versions.on_enter.append(entered.append)
    versions.on_free.append(freed.append)
    versions.begin_canary(canary(new, 0.5))
    assert entered == [new]
    assert versions.keys("it") == ["it#1", "it#2"]
    with versions.using(cast(Any, [old])):
        versions.promote("it")
        assert not freed
        assert versions.keys("it") == ["it#2", "it#1"]
    assert freed == [old]
    assert versions.find("it") is versions.loaded["it"] is cast(Scorer, new)

    third = Ranker("it", "3")
    versions.begin_canary(canary(third, 0.5))
    versions.change_share("it", 1.0)
    assert versions.find("it", query="any") is cast(Scorer, third)
    versions.end_canary("it")
    assert freed == [old, third]
    versions.end_canary("it")
    assert versions.find("it", query="any") is cast(Scorer, new)


def test_an_ensemble_has_its_members_beside_it() -> None:
    def both(version: str) -> Ensemble:
        return Ensemble("both", version, (Ranker("both/a", version), Ranker("both/b", version)))

    old, new = both("1"), both("2")
    versions = loaded(Ranker("it", "0"), old)
    freed: list[Any] = []
    versions.on_free.append(freed.append)
    versions.begin_canary(canary(new, 1.0))
    assert versions.find("both", query="any") is cast(Scorer, new)
    # Its members alone have a canary no more than it asks for: they are asked for by version.
    assert versions.find("both/a") is cast(Scorer, old.members[0])
    assert versions.find("both/a", "2") is cast(Scorer, new.members[0])
    versions.promote("both")
    assert freed == [*old.members]
    versions.remove("both", "it was unloaded")
    assert list(versions.rankers) == list(versions.loaded) == ["it"]
    assert freed == [*old.members, *new.members]


def test_a_ranker_comes_and_goes_by_name_with_its_canary() -> None:
    versions = loaded(Ranker("it", "0"))
    freed: list[Any] = []
    versions.on_free.append(freed.append)
    added = Ranker("more", "1", similarity="cosine")
    versions.add(cast(Scorer, added))
    assert versions.bi_encoder("more") is cast(LoadedRanker, added)
    versions.begin_canary(canary(Ranker("more", "2"), 0.5))
    versions.remove("more", "it was unloaded")
    assert [each.version for each in freed] == ["2", "1"]
    assert not versions.canaries
    with pytest.raises(NotFound, match="no ranker 'more' here, it was unloaded; known are: it"):
        versions.find("more")
    with pytest.raises(NotFound, match="no bi-encoder 'more' here; known are: none"):
        versions.bi_encoder("more")


def test_a_rankers_own_name_may_contain_an_at() -> None:
    names = ("it", "of@home")
    assert split_version("it", names) == ("it", "")
    assert split_version("it@12", names) == ("it", "12")
    assert split_version("@12", names) == ("", "12")
    assert split_version("of@home", names) == ("of@home", "")
    assert split_version("of@home@12", names) == ("of@home", "12")
