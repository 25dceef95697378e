"""The line about a deployment's progress, from Serve's details."""

from collections.abc import Sequence

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

from ray.serve.schema import DeploymentDetails, ReplicaDetails, ReplicaState

from farrank_scale.progress import progress

FREE, TOTAL = {"CPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}


def replica(state: str, node: str | None = None) -> ReplicaDetails:
    return ReplicaDetails(replica_id="a", state=ReplicaState(state), node_ip=node, start_time_s=0)


@pytest.mark.parametrize(
    ("wanted", "needs", "replicas", "line"),
    [
        (2, {"CPU": 1}, [], "0 of 2 replicas are ready"),
        (
            6,
            {"CPU": 2.0},
            [replica("RUNNING", "10.0.0.1")] * 3 + [replica("STARTING")] * 3,
            "3 of 6 replicas are ready on 10.0.0.1; 3 wait for a node with 2 CPUs free "
            "(the cluster has 1 of 8 CPUs free)",
        ),
        (
            4,
            {"CPU": 0.5, "GPU": 1},
            [
                replica("RUNNING", "10.0.0.2"),
                replica("RUNNING", "10.0.0.1"),
                replica("STARTING", "10.0.0.1"),
                replica("STARTING"),
            ],
            "2 of 4 replicas are ready (1 on 10.0.0.1, 1 on 10.0.0.2); 1 starts on 10.0.0.1; "
            "1 waits for a node with 0.5 CPUs and 1 GPU free (the cluster has 1 of 8 CPUs, 0 of 2 GPUs free)",
        ),
        (
            1,
            {},
            [replica("RUNNING", "10.0.0.1"), replica("STARTING"), replica("STOPPING", "10.0.0.1")],
            "1 of 1 replicas are ready on 10.0.0.1; 1 waits for a process; 1 drains",
        ),
    ],
)
def test_it_says_which_are_ready_and_what_the_others_wait_for(
    wanted: int, needs: dict[str, float], replicas: Sequence[ReplicaDetails], line: str
) -> None:
    details = DeploymentDetails.model_construct(
        target_num_replicas=wanted, required_resources=needs, replicas=list(replicas)
    )
    assert progress(details, FREE, TOTAL) == line
