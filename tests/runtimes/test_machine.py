"""The kernel's facts about a machine, also for machines other than this one."""

from pathlib import Path

import pytest

from farrank_runtimes import machine

INTEL = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8
processor\t: 1
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu avx2
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16 sve\n"
OLD = "model name\t: Intel(R) Core(TM)2\nflags\t\t: fpu sse2 avx2x\n"
CLIENT = "model name\t: 12th Gen Intel(R) Core(TM) i7\nflags\t\t: avx2 avx_vnni\n"
MEMORY = "MemTotal:       16384000 kB\nMemFree:  1 kB\nMemAvailable:    8192000 kB\n"
DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@u)\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(
    ("said", "instructions"),
    [
        (INTEL, ("avx2", "avx512", "vnni", "avx512_bf16", "amx_bf16", "amx_int8")),
        (ARM, ("dotprod", "i8mm", "bf16", "sve")),
        (CLIENT, ("avx2", "vnni")),
        (OLD, ()),
    ],
)
def test_instructions_are_those_that_the_kernel_names(
    tmp_path: Path, said: str, instructions: tuple[str, ...]
) -> None:
    write(tmp_path, "proc/cpuinfo", said)
    assert machine.processor(tmp_path).instructions == instructions


@pytest.mark.parametrize(
    ("name", "said", "limit"),
    [
        ("sys/fs/cgroup/memory.max", "4294967296\n", 4 * 2**30),
        ("sys/fs/cgroup/memory.max", "max\n", None),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4294967296\n", 4 * 2**30),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n", None),
    ],
)
def test_a_containers_limit_of_memory_is_read(
    tmp_path: Path, name: str, said: str, limit: int | None
) -> None:
    write(tmp_path, "proc/meminfo", MEMORY)
    write(tmp_path, name, said)
    assert machine.memory(tmp_path) == machine.Memory(16384000 * 1024, 8192000 * 1024, limit)


def test_the_nvidia_driver_is_named(tmp_path: Path) -> None:
    assert machine.nvidia_driver(tmp_path) is None
    write(tmp_path, "proc/driver/nvidia/version", DRIVER)
    assert machine.nvidia_driver(tmp_path) == "570.86.15"


def test_a_system_without_facts_is_described_too(tmp_path: Path) -> None:
    found = machine.processor(tmp_path)
    assert found.cores >= 1
    assert found.instructions == ()
    assert machine.memory(tmp_path) == machine.Memory(None, None, None)
