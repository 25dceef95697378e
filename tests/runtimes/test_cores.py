"""The number of cores that a process may really use."""

from pathlib import Path

import pytest

from farrank_runtimes.cores import usable_cores


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", None), ("50000 100000", 1), ("100000 100000", 1), ("nonsense", None)]
)
def test_a_containers_quota_caps_the_threads(tmp_path: Path, quota: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == (cores or usable_cores(tmp_path / "absent"))
