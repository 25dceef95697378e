"""The finished share of a running batch, as the watchdog of the device's thread estimates it."""

from farrank_server.engine.device.watchdog import Watchdog
from support.engine_bench import until


async def test_work_is_done_as_time_goes_by_and_no_more_than_there_was() -> None:
    watchdog = Watchdog(10.0)
    assert watchdog.done_s() == 0.0
    with watchdog.step(2000.0, 1000.0):
        before_s = watchdog.done_s()
        await until(lambda: watchdog.done_s() > before_s)
        assert watchdog.done_s() < 1000.0
    assert watchdog.done_s() == 0.0
    with watchdog.step(1.0, 0.001):
        await until(lambda: watchdog.done_s() == 0.001)
    # A call that is not a batch does no part of the backlog.
    with watchdog.step(10.0):
        assert watchdog.done_s() == 0.0
