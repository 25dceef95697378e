"""`farrank scale` without a cluster: its refusals, and the file that it prints for Serve."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from support.commands import Outcome

Farrank = Callable[..., Outcome]
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="needs the ray extra: pip install 'farrank[ray]'"
)


@pytest.mark.parametrize("action", ["up", "status", "down"])
def test_without_the_extra_it_says_what_to_install(
    action: str, farrank: Farrank, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.startswith("farrank_scale")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = farrank("scale", action)
    assert told.exit_code == 2
    assert told.err == (
        "farrank: farrank scale needs the server and ray extras: pip install 'farrank[server,ray]' "
        "(no module 'ray')\n"
    )


@needs_ray
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "argument --replicas: 0 is below 1"),
        (["--surge", "101"], "argument --surge: 101 is not between 0 and 100"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        (["--set", "listen.prot=1"], "listen.prot: there is no such key (--set listen.prot=1)"),
        (["--set", "listen.tls.certificate=a", "--set", "listen.tls.private_key=b"], "listen.tls: "),
        (["--min-replicas", "2"], "min_replicas: 2 is given without max_replicas; set both"),
        (["--replicas", "3", "--max-replicas", "2"], "replicas: 3 is not allowed; it must be from"),
    ],
)
def test_bad_values_are_refused_before_a_cluster_is_asked(
    arguments: list[str], message: str, farrank: Farrank
) -> None:
    told = farrank("scale", "up", *arguments)
    assert told.exit_code == 2
    assert message in told.err
    assert "Traceback" not in told.err


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:70000", "nowhere"])
def test_an_address_without_a_cluster_is_reported_at_once(address: str, farrank: Farrank) -> None:
    told = farrank("scale", "status", "--address", address)
    assert told.exit_code == 1
    assert told.err.startswith(f"farrank: no Ray cluster at {address}: start one with `ray start --head`")


@needs_ray
def test_the_printed_file_makes_the_same_application(farrank: Farrank, tmp_path: Path) -> None:
    from farrank_scale.application import from_file

    file = tmp_path / "farrank.yaml"
    file.write_text("listen: {port: 9010, http: {port: 9011}}\n")
    told = farrank(
        *("scale", "up", "--config", file, "--set", "listen.drain_timeout_s=5", "--name", "other"),
        *("--replicas", "2", "--max-replicas", "4", "--print-config"),
    )
    assert told.exit_code == 0
    written = yaml.safe_load(told.out)
    assert written["grpc_options"]["port"] == 9010
    assert written["http_options"]["port"] == 9011
    (described,) = written["applications"]
    assert described["name"] == "other"
    deployment = from_file(described["args"])._bound_deployment
    (config,) = deployment.init_args
    assert (config.listen.port, config.listen.http.port, config.listen.drain_timeout_s) == (9010, 9011, 5)
    least_and_most = deployment._deployment_config.autoscaling_config
    assert (least_and_most.min_replicas, least_and_most.max_replicas) == (2, 4)
