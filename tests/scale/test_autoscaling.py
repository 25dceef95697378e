"""The policy for the number of replicas, called with Serve's own arguments."""

from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingContext

from farrank_scale.application import LOOK_BACK_S, Scale, application
from farrank_scale.autoscaling import METRIC, BacklogPolicy, replicas_for
from farrank_server.config.schema import ServerConfig

DEPLOYMENT = DeploymentID(name="farrank", app_name="farrank")


def asked(backlogs_s: list[float], *, running: int, target: int, metric: str = METRIC) -> int:
    """Call the policy with replicas of which the first ones have reported backlogs, and a target of 2 s."""
    replicas = [ReplicaID(str(each), DEPLOYMENT) for each in range(running)]
    told = dict(zip(replicas, backlogs_s, strict=False))
    context = AutoscalingContext(
        deployment_id=DEPLOYMENT,
        deployment_name="farrank",
        app_name="farrank",
        current_num_replicas=running,
        target_num_replicas=target,
        running_replicas=replicas,
        total_num_requests=0.0,
        total_queued_requests=0.0,
        aggregated_metrics=lambda: {metric: told} if told else {},
        raw_metrics=None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=9,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=None,
    )
    count, state = BacklogPolicy(target_s=2.0)(context)
    assert state == {}
    return count


@pytest.mark.parametrize(
    ("backlogs_s", "count"),
    [
        ([2.0], 1),
        ([2.1], 2),
        ([9.0], 5),
        ([0.0, 0.0, 0.0], 1),
        # All of their work, divided among replicas of two seconds each.
        ([6.0, 0.0], 3),
        ([1.0, 1.0, 1.0], 2),
    ],
)
def test_there_are_as_many_as_bring_each_to_the_target(backlogs_s: list[float], count: int) -> None:
    assert asked(backlogs_s, running=len(backlogs_s), target=len(backlogs_s)) == count


def test_replicas_without_a_report_count_as_the_others_do() -> None:
    assert asked([4.0], running=2, target=2) == 4


@pytest.mark.parametrize("metric", [METRIC, "ongoing_requests"])
def test_without_a_backlog_nothing_changes(metric: str) -> None:
    backlogs_s = [] if metric == METRIC else [9.0, 9.0]
    assert asked(backlogs_s, running=2, target=3, metric=metric) == 3


def test_there_is_always_one() -> None:
    assert replicas_for(0, 5.0, 1.0) == 1


def test_replicas_are_replaced_when_autoscaling_begins() -> None:
    def version(**scale: Any) -> str:
        return str(application(ServerConfig(), Scale(**scale))._bound_deployment.version)

    assert version(replicas=2) == version(replicas=1)
    assert version(max_replicas=4) == version(max_replicas=2, upscale_delay_s=1.0)
    assert version(max_replicas=2) != version(replicas=2)


@pytest.mark.parametrize(("upscale_delay_s", "look_back_s"), [(0.0, LOOK_BACK_S), (60.0, 60.0)])
def test_serve_gets_bounds_and_delays(upscale_delay_s: float, look_back_s: float) -> None:
    scale = Scale(replicas=2, max_replicas=4, upscale_delay_s=upscale_delay_s, downscale_delay_s=90.0)
    deployment: Any = application(ServerConfig(), scale)._bound_deployment
    given = deployment._deployment_config.autoscaling_config
    assert (given.min_replicas, given.initial_replicas, given.max_replicas) == (2, 2, 4)
    assert (given.upscale_delay_s, given.downscale_delay_s) == (upscale_delay_s, 90.0)
    assert given.look_back_period_s == look_back_s
