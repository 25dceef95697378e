"""A change of watched files asks for one reload: a plain file, and a ConfigMap whose link moves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from farrank_server import watch as module
from farrank_server.certificates import state_of
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.watch import Watched, watch
from farrank_settings.errors import ConfigError
from support.engine_bench import until


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_S", 0.02)


@asynccontextmanager
async def watching(look: Callable[[], object]) -> AsyncIterator[list[object]]:
    """Watch until the block ends. Yields what was looked at when a reload was asked for."""
    asked: list[object] = []
    looked = 0

    def counted() -> object:
        nonlocal looked
        looked += 1
        return look()

    task = asyncio.create_task(watch(counted, lambda: asked.append(look())))
    try:
        await until(lambda: looked > 0)
        yield asked
    finally:
        task.cancel()


async def test_a_config_map_whose_link_moves_asks_for_one_reload(tmp_path: Path) -> None:
    # As the kubelet does it: ..data is a link to a folder, and is replaced as a whole.
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "farrank.yaml").write_text(f"# {number}\n")
    data, file = tmp_path / "..data", tmp_path / "farrank.yaml"
    data.symlink_to("..1")
    file.symlink_to("..data/farrank.yaml")
    seen: list[str] = []

    def look() -> object:
        seen.append(file.read_text())
        return state_of(file)

    async with watching(look) as asked:
        await asyncio.sleep(0.1)
        assert asked == []
        fresh = tmp_path / "..data_tmp"
        fresh.symlink_to("..2")
        fresh.replace(data)
        await until(lambda: bool(asked))
        await asyncio.sleep(0.1)
        assert asked == [state_of(file)]
        assert seen[-1] == "# 2\n"


async def test_files_that_still_change_are_not_read() -> None:
    looks = 0

    def look() -> object:
        nonlocal looks
        looks += 1
        return min(looks, 10)

    async with watching(look) as asked:
        await until(lambda: looks > 30)
        assert asked == [10]


def test_files_of_rankers_are_those_of_the_configuration_that_was_looked_at(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    link = tmp_path / "current"
    link.symlink_to(tiny_rankers["maxp"])
    read: list[Path | None] = [link]

    def reread() -> ServerConfig:
        if read[-1] is None:
            raise ConfigError("not readable")
        return ServerConfig(rankers={"it": RankerConfig(str(read[-1]))})

    watched = Watched(lambda: len(read), reread)
    before = watched()
    assert watched() == before
    link.unlink()
    link.symlink_to(tiny_rankers["firstp"])
    moved = watched()
    assert moved != before

    read.append(tiny_rankers["maxp"])
    other = watched()
    assert other not in (before, moved)
    assert watched() == other
    # A configuration that cannot be read is one change, and the rankers of the last one are looked at.
    read.append(None)
    broken = watched()
    assert broken != other
    assert watched() == broken
