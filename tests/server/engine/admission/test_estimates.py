import pytest

from farrank_server.engine.admission.estimates import MEMORY_S, Speed, TokenDensity


def test_the_speed_follows_what_is_measured() -> None:
    speed = Speed(100)
    for _ in range(200):
        speed.observe(5000, busy_s=MEMORY_S / 10)
    assert speed.per_s == pytest.approx(5000 / (MEMORY_S / 10), rel=1e-3)


def test_a_stall_is_forgotten_within_seconds() -> None:
    speed = Speed(1000)
    speed.observe(100, busy_s=25.0)
    assert speed.per_s > 700
    speed.observe(1_000_000, busy_s=0.001)
    assert speed.per_s < 1100


def test_quick_little_batches_do_not_outweigh_slow_ones() -> None:
    speed = Speed(1000)
    for _ in range(2000):
        speed.observe(1000, busy_s=0.9)
        speed.observe(10, busy_s=0.0001)
    assert speed.per_s == pytest.approx(1010 / 0.9001, rel=0.02)


@pytest.mark.parametrize(("units", "busy_s"), [(0, 1.0), (1, 0.0)])
def test_nothing_measured_changes_nothing(units: float, busy_s: float) -> None:
    speed = Speed(100)
    speed.observe(units, busy_s)
    assert speed.per_s == 100


def test_the_density_follows_the_texts() -> None:
    density = TokenDensity(0.25)
    for _ in range(500):
        density.observe(10_000, 10_000)
    assert density.per_character == pytest.approx(1, rel=0.01)
