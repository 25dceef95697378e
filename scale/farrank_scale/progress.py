"""A line about a deployment's progress: ready and starting replicas, and resources that others wait for."""

from collections import Counter
from collections.abc import Mapping

from ray.serve.schema import DeploymentDetails

READY = "RUNNING"
ENDING = "STOPPING"

# The resources that a replica may need, by Ray's names.
RESOURCES = ("CPU", "GPU")


def progress(deployment: DeploymentDetails, free: Mapping[str, float], total: Mapping[str, float]) -> str:
    """Describe the progress. `free` and `total` are the cluster's resources, by Ray's names."""
    by_state: dict[str, Counter[str]] = {}
    for each in deployment.replicas:
        by_state.setdefault(each.state.value, Counter())[each.node_ip or ""] += 1
    ready = by_state.pop(READY, Counter())
    ending = by_state.pop(ENDING, Counter())
    starting = sum(by_state.values(), Counter[str]())
    # Replicas without a node have no process yet.
    waiting = starting.pop("", 0)
    parts = [f"{ready.total()} of {deployment.target_num_replicas} replicas are ready{_where(ready)}"]
    if starting:
        parts.append(f"{_counted(starting.total(), 'start')}{_where(starting)}")
    if waiting:
        place = _place(deployment.required_resources, free, total)
        parts.append(f"{_counted(waiting, 'wait')} for {place}")
    if ending:
        parts.append(_counted(ending.total(), "drain"))
    return "; ".join(parts)


def _where(nodes: Mapping[str, int]) -> str:
    """Write the nodes' addresses, with counts if there are several."""
    if len(nodes) > 1:
        return f" ({', '.join(f'{count} on {node}' for node, count in sorted(nodes.items()))})"
    return "".join(f" on {node}" for node in nodes)


def _counted(count: int, verb: str) -> str:
    return f"{count} {verb}{'s' * (count == 1)}"


def _place(needs: Mapping[str, float], free: Mapping[str, float], total: Mapping[str, float]) -> str:
    asked = {name: needs[name] for name in RESOURCES if needs.get(name)}
    if not asked:
        return "a process"
    each = " and ".join(f"{count:g} {name}{'s' * (count != 1)}" for name, count in asked.items())
    there = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}s" for name in asked)
    return f"a node with {each} free (the cluster has {there} free)"
