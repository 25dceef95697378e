"""What is sent: calls from files, from a run over a collection, or made up by length."""

from farrank_loadtest.workloads.call import Call, Workload

__all__ = ["Call", "Workload"]
