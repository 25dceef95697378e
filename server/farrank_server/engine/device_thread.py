"""The one thread on which everything of the device happens: loading, warming up, running."""

from concurrent.futures import ThreadPoolExecutor


def device_thread() -> ThreadPoolExecutor:
    """Make the executor of one thread that loads the rankers and then runs the worker.

    One thread, because OpenMP keeps a team of threads for every thread that ever ran a parallel operation.
    With two teams it counts more threads than cores and stops spinning between operations: a small batch
    then takes half as long again on a CPU (MiniLM-L6, 68 tokens, 2 cores: 17 ms instead of 11.6).
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="farrank-device")
