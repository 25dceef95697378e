"""The pods of a release: the command accepts their configuration; they start, drain and end as promised."""

from __future__ import annotations

import math
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

from farrank_calls.telemetry.config import LoggingConfig
from farrank_server.config.schema import DeviceConfig, ListenConfig, ServerConfig
from farrank_server.replica import CUT_GRACE_S
from farrank_server.service.methods import SERVICE
from support.documentation import ROOT, Dockerfile
from support.helm_chart import ALL, CHART, VALUES, Manifest, Rendered, Values, arguments, served

DIGEST = f"sha256:{'0a' * 32}"
TARGETS = {"as it is": "cpu", "cpu": "cpu", "gpu": "cuda", "everything": "cpu"}
SECRETS: Values = {
    "tls": {"secretName": "t"},
    "apiKeys": {"secretName": "k"},
    "metrics": {"tokenSecretName": "m"},
}


def mounts(rendered: Rendered) -> dict[str, Manifest]:
    return {each["mountPath"]: each for each in rendered.server["volumeMounts"]}


def volumes(rendered: Rendered) -> dict[str, Manifest]:
    return {each["name"]: each for each in rendered.pod["spec"]["volumes"]}


@pytest.mark.parametrize("name", VALUES)
def test_the_server_reads_its_arguments_variables_and_file(name: str, tmp_path: Path) -> None:
    rendered = Rendered(VALUES[name])
    config = served(rendered, tmp_path, TARGETS[name])
    ports = {each["name"]: each["containerPort"] for each in rendered.server["ports"]}
    assert (config.listen.host, config.listen.port) == ("0.0.0.0", ports["grpc"])
    assert (config.listen.metrics_port, config.listen.http.port) == (ports["metrics"], ports["http"])
    assert config.default_ranker == "minilm"
    assert rendered.server["image"] == f"farrank:{version('farrank')}-{TARGETS[name]}"
    assert config.device.name == {"gpu": "cuda:0", "everything": "cpu"}.get(name)
    assert arguments(rendered.server).export == ("auto" if name == "cpu" else "never")


def test_without_values_it_is_the_servers_own_configuration(tmp_path: Path) -> None:
    """Except for the addresses, which the images set as well, the log's format, and one thread per CPU."""
    images = {"FARRANK_LISTEN__HOST", "FARRANK_LISTEN__PORT", "FARRANK_LISTEN__METRICS_PORT"}
    images |= {"FARRANK_LISTEN__HTTP__PORT"}
    assert images < Dockerfile.read().environment("cpu").keys()
    config = served(Rendered(), tmp_path)
    listen = ListenConfig(host="0.0.0.0", http=config.listen.http)
    device = DeviceConfig(threads=2)
    assert config == ServerConfig(listen=listen, device=device, logging=LoggingConfig(format="json"))
    assert config.listen.http.models == ListenConfig().http.models


def test_every_variable_of_the_images_that_configures_is_set_in_the_pod() -> None:
    """The images' variables would otherwise override the file."""
    rendered = Rendered({"config": {"device": {"name": "cuda:1"}}})
    here = {each["name"] for each in rendered.server["env"]}
    for target in ("cpu", "cuda", "tensorrt"):
        theirs = {each for each in Dockerfile.read().environment(target) if each.startswith("FARRANK_")}
        assert theirs <= here


def test_rankers_and_models_keep_their_order_and_numbers_their_digits(tmp_path: Path) -> None:
    rankers = [{"name": name, "source": f"/models/{name}"} for name in ("zebra", "ant", "mole")]
    patterns = [{"name": "rerank-small*", "ranker": "ant"}, {"name": "**", "ranker": ""}]
    values = {
        "rankers": [{**rankers[0], "window": 477, "query_prefix": 'say: "x"\n'}, *rankers[1:]],
        "modelNames": patterns,
        "config": {
            "limits": {"max_queued_tokens": 123456789, "max_held_characters": 10**12},
            "listen": {"http": {"page": False, "cors_origins": ["https://search.example"]}},
            "first_stage": {"indexes": {"docs": {"path": "/indexes/docs", "k1": 1.2}}},
            "cache_bytes": 0,
        },
    }
    config = served(Rendered(values), tmp_path)
    assert list(config.rankers) == ["zebra", "ant", "mole"]
    assert (config.rankers["zebra"].window, config.rankers["zebra"].query_prefix) == (477, 'say: "x"\n')
    assert list(config.listen.http.models.items()) == [("rerank-small*", "ant"), ("**", "")]
    assert (config.limits.max_queued_tokens, config.limits.max_held_characters) == (123456789, 10**12)
    assert (config.listen.http.page, config.listen.http.cors_origins) == (False, ("https://search.example",))
    assert vars_of(config.first_stage.indexes["docs"], "k1", "path") == (1.2, Path("/indexes/docs"))
    assert config.cache_bytes == 0


def vars_of(value: Any, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in names)


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        ({}, 2),
        ({"requests": {"cpu": "3"}}, 3),
        ({"requests": {"cpu": 6}}, 6),
        ({"requests": {"cpu": "2500m"}}, 3),
        ({"requests": {"cpu": "100m"}}, 1),
        # The server may use the CPUs of its limit, and is throttled beyond it.
        ({"limits": {"cpu": "8"}}, 8),
        ({"limits": {"cpu": "1500m"}}, 1),
        ({"requests": {"cpu": None}, "limits": {"cpu": "4"}}, 4),
        ({"requests": {"cpu": None}}, None),
    ],
)
def test_threads_are_as_many_as_the_cpus_of_the_pod(
    resources: Values, threads: int | None, tmp_path: Path
) -> None:
    """A server without a limit sees every core of the node."""
    rendered = Rendered({"resources": resources})
    assert served(rendered, tmp_path).device.threads == threads
    assert variables(rendered).get("OMP_NUM_THREADS") == (None if threads is None else str(threads))


def test_threads_that_the_values_name_are_taken(tmp_path: Path) -> None:
    rendered = Rendered({"config": {"device": {"threads": 7}}, "resources": {"limits": {"cpu": "4"}}})
    assert served(rendered, tmp_path).device.threads == 7
    assert variables(rendered)["OMP_NUM_THREADS"] == "7"
    rendered = Rendered({"env": [{"name": "OMP_NUM_THREADS", "value": "5"}]})
    named = [each["value"] for each in rendered.server["env"] if each["name"] == "OMP_NUM_THREADS"]
    assert named == ["5"]


def variables(rendered: Rendered) -> dict[str, str]:
    return {each["name"]: each["value"] for each in rendered.server["env"]}


IMAGES = {
    "the version and the target": ({}, "farrank:{version}-cpu"),
    "a registry": (
        {"registry": "registry.example:5000", "target": "cuda"},
        "registry.example:5000/farrank:{version}-cuda",
    ),
    "a folder of a registry": (
        {"registry": "registry.example/team"},
        "registry.example/team/farrank:{version}-cpu",
    ),
    "a tag": ({"repository": "team/reranker", "tag": "blue"}, "team/reranker:blue"),
    "a digest counts before the tag": ({"tag": "blue", "digest": DIGEST}, f"farrank@{DIGEST}"),
}


@pytest.mark.parametrize(("image", "name"), IMAGES.values(), ids=IMAGES)
def test_the_image_is_named_by_registry_repository_and_tag(image: Values, name: str) -> None:
    server = Rendered({"image": image}).server
    assert server["image"] == name.format(version=version("farrank"))
    # Kubernetes' own policy, unless the values name one.
    assert "imagePullPolicy" not in server
    assert Rendered({"image": {**image, "pullPolicy": "Always"}}).server["imagePullPolicy"] == "Always"


def test_envoys_image_is_named_likewise_and_pulled_with_the_same_secrets() -> None:
    def pod(values: Values) -> Manifest:
        found: Manifest = Rendered(values).one("Deployment", "demo-farrank-envoy")["spec"]["template"]["spec"]
        return found

    envoy: dict[str, Any] = {"enabled": True}
    assert pod({"envoy": envoy})["containers"][0]["image"].startswith("docker.io/envoyproxy/envoy:v")
    assert "imagePullSecrets" not in pod({"envoy": envoy})
    envoy["image"] = {"registry": "registry.example", "digest": DIGEST, "pullPolicy": "Never"}
    own = pod({"envoy": envoy, "image": {"pullSecrets": [{"name": "registry"}]}})
    assert own["containers"][0]["image"] == f"registry.example/envoyproxy/envoy@{DIGEST}"
    assert own["containers"][0]["imagePullPolicy"] == "Never"
    assert own["imagePullSecrets"] == [{"name": "registry"}]


def test_an_upgrade_that_switches_autoscaling_on_keeps_the_replicas_that_run(tmp_path: Path) -> None:
    """Helm would remove the field, and Kubernetes' default is 1.

    Helm's engine has no cluster here. A copy of the chart gets the cluster's answer from the values.
    """
    copied = Path(shutil.copytree(CHART, tmp_path / "farrank"))
    helpers = copied / "templates" / "_helpers.tpl"
    asked = 'lookup "apps/v1" "Deployment" .Release.Namespace (include "farrank.fullname" .)'
    text = helpers.read_text(encoding="utf-8")
    assert text.count(asked) == 1
    helpers.write_text(text.replace(asked, ".Values.global.running"), encoding="utf-8")
    scaled = {"autoscaling": {"enabled": True}}

    def replicas(running: Values, **values: Any) -> int | None:
        with Chart.load(copied) as chart:
            given = {"global": {"running": running}, **values}
            files = chart.render(given, name="demo", namespace="search", is_upgrade=True, is_install=False)
        deployment = yaml.safe_load(files["farrank/templates/deployment.yaml"])
        assert deployment["metadata"]["name"] == "demo-farrank"
        found: int | None = deployment["spec"].get("replicas")
        return found

    running = {"spec": {"replicas": 5}}
    assert replicas(running, **scaled) == 5
    # The autoscaler decides if the release does not run yet, or if Helm asks no cluster.
    assert replicas({}, **scaled) is None
    assert replicas(running) == 2


def test_no_http_is_no_http(tmp_path: Path) -> None:
    rendered = Rendered({"ports": {"http": None}})
    assert served(rendered, tmp_path).listen.http.port is None
    assert [each["name"] for each in rendered.server["ports"]] == ["grpc", "metrics"]
    assert [each["name"] for each in rendered.one("Service")["spec"]["ports"]] == ["metrics"]


@pytest.mark.parametrize("drain_s", [None, 0, 0.2, 30, 299.5])
@pytest.mark.parametrize("pre_stop_s", [1, 5, 20])
def test_a_pod_has_the_time_that_its_drain_takes(
    drain_s: float | None, pre_stop_s: int, tmp_path: Path
) -> None:
    rendered = Rendered({"config": {"listen": {"drain_timeout_s": drain_s}}, "preStopSeconds": pre_stop_s})
    config = served(rendered, tmp_path)
    assert config.listen.drain_timeout_s == (ListenConfig().drain_timeout_s if drain_s is None else drain_s)
    assert rendered.server["lifecycle"] == {"preStop": {"sleep": {"seconds": pre_stop_s}}}
    grace_s = rendered.pod["spec"]["terminationGracePeriodSeconds"]
    # Kubernetes' grace period includes preStop.
    needed_s = pre_stop_s + config.listen.drain_timeout_s + CUT_GRACE_S
    assert needed_s + 10 <= grace_s <= math.ceil(needed_s) + 20


def test_probes_ask_for_the_health_of_the_service() -> None:
    server = Rendered().server
    for name in ("startupProbe", "readinessProbe"):
        assert server[name]["grpc"] == {"port": 50051, "service": SERVICE.full_name}
    with_tls = Rendered({"tls": {"secretName": "t"}}).server
    for name in ("startupProbe", "readinessProbe"):
        assert "grpc" not in with_tls[name]
        assert with_tls[name]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        assert with_tls[name]["periodSeconds"] == server[name]["periodSeconds"]
    # A draining server must not be killed, but a server with a lost device must be. /livez fails only for the
    # latter.
    for each in (server, with_tls):
        assert each["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_start_may_take_as_long_as_the_values_say(values: Values) -> None:
    rendered = Rendered(values)
    probe = rendered.server["startupProbe"]
    start_s = values.get("startSeconds", 600)
    assert start_s <= probe["periodSeconds"] * probe["failureThreshold"] < start_s + probe["periodSeconds"]
    assert rendered.one("Deployment")["spec"]["progressDeadlineSeconds"] > start_s


def test_a_draining_replica_is_out_of_its_service_before_sigterm() -> None:
    """If replicas still got calls when SIGTERM arrives, callers would be refused without need."""
    server = Rendered().server
    probe = server["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] <= 5


def test_a_rollout_leaves_no_gap() -> None:
    spec = Rendered().one("Deployment")["spec"]
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0},
    }
    assert spec["replicas"] == 2


def test_another_configuration_is_another_pod_and_the_same_is_the_same() -> None:
    def checksum(values: Values) -> str:
        found: str = Rendered(values).pod["metadata"]["annotations"]["checksum/config"]
        return found

    assert checksum({}) == checksum({"replicas": 7})
    assert checksum({}) != checksum({"config": {"cache_bytes": 1}})
    assert checksum({}) != checksum({"rankers": [{"name": "other"}]})


def test_pods_take_changed_rankers_without_a_restart_unless_they_export() -> None:
    one = {"rankers": [{"name": "a", "source": "/models/one"}]}
    two = {"rankers": [{"name": "a", "source": "/models/two"}, {"name": "b"}]}

    def checksum(values: Values) -> str:
        rendered = Rendered(values)
        assert ("--watch" in rendered.server["args"]) == (checks_in_place in values.items())
        found: str = rendered.pod["metadata"]["annotations"]["checksum/config"]
        return found

    checks_in_place = ("export", "never")
    assert checksum({**one, "export": "never"}) == checksum({**two, "export": "never"})
    assert checksum({**one, "export": "auto"}) != checksum({**two, "export": "auto"})


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_selector_selects_exactly_its_pods(values: Values) -> None:
    rendered = Rendered(values)
    deployments = rendered.all("Deployment")
    labels = {name: each["spec"]["template"]["metadata"]["labels"] for name, each in deployments.items()}

    def selected(selector: dict[str, str]) -> list[str]:
        return [name for name, has in labels.items() if selector.items() <= has.items()]

    for name, deployment in deployments.items():
        assert selected(deployment["spec"]["selector"]["matchLabels"]) == [name]
        # The selector may never change, but versions do.
        assert not any(
            "version" in key or "chart" in key for key in deployment["spec"]["selector"]["matchLabels"]
        )
        for spread in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]:
            assert selected(spread["labelSelector"]["matchLabels"]) == [name]
    for name, service in rendered.all("Service").items():
        (pods,) = selected(service["spec"]["selector"])
        assert pods == name.removesuffix("-replicas")
        ports = {
            each["name"] for each in deployments[pods]["spec"]["template"]["spec"]["containers"][0]["ports"]
        }
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    for name, budget in rendered.all("PodDisruptionBudget").items():
        assert selected(budget["spec"]["selector"]["matchLabels"]) == [name]
    for policy in rendered.all("NetworkPolicy").values():
        assert selected(policy["spec"]["podSelector"]["matchLabels"]) == ["demo-farrank"]
    for scaled in rendered.all("ScaledObject").values():
        assert scaled["spec"]["scaleTargetRef"] == {"name": "demo-farrank"}


def test_grpc_clients_get_every_address_and_http_clients_one() -> None:
    rendered = Rendered()
    replicas = rendered.one("Service", "demo-farrank-replicas")["spec"]
    assert replicas["clusterIP"] == "None"
    assert [(each["name"], each["port"]) for each in replicas["ports"]] == [("grpc", 50051)]
    # Pods that are not ready must not be found.
    assert not replicas.get("publishNotReadyAddresses", False)
    one = rendered.one("Service")["spec"]
    assert one["type"] == "ClusterIP"
    assert "clusterIP" not in one
    assert {each["name"]: each["port"] for each in one["ports"]} == {"http": 8080, "metrics": 9090}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_nothing_runs_as_root_or_writes_to_its_root(values: Values) -> None:
    for deployment in Rendered(values).all("Deployment").values():
        pod = deployment["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] > 0
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }


@pytest.mark.parametrize("name", VALUES)
def test_the_user_is_the_images(name: str) -> None:
    user = Dockerfile.read().inherited(TARGETS[name], "USER")[-1]
    assert Rendered(VALUES[name]).pod["spec"]["securityContext"]["runAsUser"] == int(user)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_only_volumes_are_writable(values: Values) -> None:
    rendered = Rendered(values)
    kinds = volumes(rendered)
    writable = {path for path, mount in mounts(rendered).items() if not mount.get("readOnly")}
    assert writable == {"/tmp", "/cache"}
    for mount in rendered.server["volumeMounts"]:
        assert mount["name"] in kinds
    variables = {each["name"]: each["value"] for each in rendered.server["env"]}
    written = [value for name, value in variables.items() if "CACHE" in name or name == "HF_HOME"]
    assert len(written) >= 2
    assert all(value.startswith("/cache/") for value in written)
    assert str(arguments(rendered.server).pid_file).startswith("/tmp/")


def test_models_come_from_a_volume_or_an_init_container() -> None:
    rendered = Rendered(ALL)
    assert mounts(rendered)["/indexes"] == {"name": "indexes", "mountPath": "/indexes", "readOnly": True}
    assert volumes(rendered)["indexes"]["persistentVolumeClaim"] == {"claimName": "indexes"}
    assert mounts(rendered)["/models"]["readOnly"] is True
    assert volumes(rendered)["models"] == {"name": "models", "emptyDir": {}}
    (init,) = rendered.pod["spec"]["initContainers"]
    assert (init["image"], init["args"]) == ("example/fetch:1.0.0", ["s3://models", "/models"])
    assert {"name": "models", "mountPath": "/models"} in init["volumeMounts"]
    assert "initContainers" not in Rendered().pod["spec"]


def test_certificates_keys_and_the_token_are_the_secrets_files(tmp_path: Path) -> None:
    rendered = Rendered(SECRETS)
    listen = served(rendered, tmp_path).listen
    assert listen.tls is not None
    assert listen.keys is not None
    assert listen.metrics_token_file is not None
    paths: dict[str, set[Path]] = {
        "t": {listen.tls.certificate, listen.tls.private_key},
        "k": {listen.keys},
        "m": {listen.metrics_token_file},
    }
    for secret, files in paths.items():
        for path in files:
            mount = mounts(rendered)[str(path.parent)]
            # Kubernetes never updates a file that is mounted alone.
            assert "subPath" not in mount
            assert mount["readOnly"] is True
            held = volumes(rendered)[mount["name"]]["secret"]
            assert (held["secretName"], held["defaultMode"]) == (secret, 0o440)
    # The keys of a secret of the type kubernetes.io/tls.
    assert (listen.tls.certificate.name, listen.tls.private_key.name) == ("tls.crt", "tls.key")
    assert listen.tls.client_ca is None
    assert (listen.keys.name, listen.metrics_token_file.name) == ("keys.toml", "token")


def test_no_secret_stands_in_the_configuration() -> None:
    assert "secret" not in yaml.safe_dump(Rendered(SECRETS).one("ConfigMap")["data"])
    assert Rendered(SECRETS).all("Secret") == {}


def test_gpus_are_asked_for_as_kubernetes_wants_it() -> None:
    rendered = Rendered(VALUES["gpu"])
    resources = rendered.server["resources"]
    # A device's request and limit must be equal, and one replica uses one device.
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == 1
    assert rendered.pod["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]


def test_cpus_are_whole_and_limited_so_that_threads_fit_them() -> None:
    resources = Rendered(VALUES["cpu"]).server["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"] == str(int(resources["limits"]["cpu"]))


def test_the_policy_lets_in_callers_and_prometheus_each_at_their_ports() -> None:
    spec = Rendered(ALL).one("NetworkPolicy")["spec"]
    calls, scrapes = spec["ingress"]
    envoy = {"app.kubernetes.io/component": "envoy"}
    assert calls["from"][0] == {"podSelector": {}}
    assert envoy.items() <= calls["from"][1]["podSelector"]["matchLabels"].items()
    assert [each["port"] for each in calls["ports"]] == ["grpc", "http"]
    assert [each["port"] for each in scrapes["ports"]] == ["metrics"]
    assert spec["egress"] == [{"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}]
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_the_notes_name_addresses_that_there_are() -> None:
    rendered = Rendered(ALL)
    notes = rendered.files["farrank/templates/NOTES.txt"]
    for name in rendered.all("Service"):
        assert f"{name}.search.svc" in notes
    assert f"has {rendered.pod['spec']['terminationGracePeriodSeconds']} s" in notes


def test_the_chart_sets_the_configuration_that_a_cluster_needs() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/farrank/values.yaml").read_text(encoding="utf-8"))
    assert values["config"] == {
        "listen": {"drain_timeout_s": ListenConfig().drain_timeout_s},
        "logging": {"format": "json"},
    }
