"""Serve's `user_config` changes the rankers of a running replica, and a wrong one changes nothing."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

from farrank_scale import replica as module
from farrank_scale.replica import FarrankReplica
from farrank_scale.user_config import reconfigured
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_settings.errors import ConfigError
from support.waiting import until


class Outside(FarrankReplica):
    """A replica outside Ray, which would await `__del__`."""

    def __del__(self) -> None:  # type: ignore[override]  # Python awaits none
        pass

    async def end(self) -> None:
        await FarrankReplica.__del__(self)

    @property
    def versions(self) -> dict[str, str]:
        return {name: each.version for name, each in self._replica.engine.rankers.items()}

    @property
    def problem(self) -> str:
        return self._problem


@pytest.fixture
async def replica(config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Outside]:
    # They would change this process.
    monkeypatch.setattr(module, "set_up_process", lambda: None)
    monkeypatch.setattr(module, "configure_logging", lambda logging: None)
    made = Outside.__new__(Outside)
    await FarrankReplica.__init__(made, config)
    yield made
    await made.end()


def of(**rankers: object) -> dict[str, Any]:
    return {"rankers": {name: {"source": str(source)} for name, source in rankers.items()}}


def test_the_keys_of_an_entry_replace_those_of_the_configuration() -> None:
    config = ServerConfig(
        rankers={"a": RankerConfig("one", precision="fp32"), "b": RankerConfig("two", runtime="torch")}
    )
    found = reconfigured(config, {**of(a="three", c="four"), "reload": 2})
    assert dict(found.rankers) == {
        "a": RankerConfig("three", precision="fp32"),
        "b": RankerConfig("two", runtime="torch"),
        "c": RankerConfig("four"),
    }
    assert reconfigured(config, {}) == config


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"limits": {}}, "user_config.limits: there is no such key; known are: rankers, reload"),
        ("fast", "user_config: 'fast' is not allowed; it holds keys"),
        ({"rankers": {"a": {"precision": "fp7"}}}, "rankers.a.precision: 'fp7' is not allowed"),
        ({"rankers": {"a": {"sauce": "x"}}}, "rankers.a.sauce: there is no such key (user_config)"),
        ({"rankers": {"a": {1: "x"}}}, "rankers.a.1: a key must be text"),
    ],
)
def test_a_wrong_key_is_named(wrong: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        reconfigured(ServerConfig(rankers={"a": RankerConfig("one")}), wrong)
    assert str(raised.value).startswith(problem)


async def test_a_new_replica_has_its_rankers_before_it_serves(
    replica: Outside, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"rankers\.tiny"):
        await replica.reconfigure(of(tiny=tmp_path / "absent"))
    before = replica.versions
    await replica.reconfigure(of(tiny=tiny_rankers["firstp"]))
    assert replica.versions != before


async def test_a_replica_that_serves_swaps_beside_its_calls_and_keeps_what_it_cannot_swap(
    replica: Outside, tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    await replica.check_health()
    first = replica.versions
    await replica.reconfigure(of(tiny=tiny_rankers["firstp"]))
    # Serve goes on while the change is under way.
    assert replica.versions == first
    await until(lambda: replica.versions != first)
    second = replica.versions

    await replica.reconfigure(of(tiny=tmp_path / "absent"))
    await until(lambda: bool(replica.problem))
    assert "rankers.tiny" in replica.problem
    assert replica.versions == second

    await replica.reconfigure({})
    await until(lambda: replica.versions == first)
    await until(lambda: replica.problem == "")
