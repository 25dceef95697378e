"""Schemas of operators' resources, as far as Farrank uses them: Kubernetes' own schemas do not have them.

Written from their published APIs: KEDA 2 (keda.sh/v1alpha1: scaledobject-spec and the scaler prometheus),
Prometheus Operator (monitoring.coreos.com/v1), the Gateway API's GRPCRoute (gateway.networking.k8s.io/v1),
KServe (serving.kserve.io/v1beta1, with a custom container), KubeRay (ray.io/v1: RayServiceSpec and
RayClusterSpec; their pod templates are Kubernetes').
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
DURATION: Schema = {"type": "string", "pattern": r"^\d+(ms|s|m|h|d)$"}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
SELECTOR: Schema = {"type": "object", "additionalProperties": False, "properties": {"matchLabels": TEXTS}}


def holding(needed: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(needed),
        "properties": properties,
    }


def several(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


def kind(version: str, name: str, spec: Schema) -> Schema:
    metadata = holding(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
    return holding(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": name},
        metadata=metadata,
        spec=spec,
    )


POLICY = holding(
    ("type", "value", "periodSeconds"),
    type={"enum": ["Pods", "Percent"]},
    value={"type": "integer", "minimum": 1},
    periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
)
SCALING = holding(
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    policies=several(POLICY),
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
)
PROMETHEUS_TRIGGER = holding(
    ("type", "metadata"),
    type={"const": "prometheus"},
    name=TEXT,
    # Only Value and AverageValue: a Prometheus trigger has no utilization.
    metricType={"enum": ["Value", "AverageValue"]},
    # All values are strings: KEDA parses numbers and booleans from them.
    metadata=holding(
        ("serverAddress", "query", "threshold"),
        serverAddress=TEXT,
        query=TEXT,
        threshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
        activationThreshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
        ignoreNullValues={"enum": ["true", "false"]},
        unsafeSsl={"enum": ["true", "false"]},
    ),
    authenticationRef=holding(("name",), name=TEXT, kind=TEXT),
)
SCALED_OBJECT = holding(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=holding(("name",), name=TEXT, kind=TEXT, apiVersion=TEXT, envSourceContainerName=TEXT),
    pollingInterval=COUNT,
    cooldownPeriod=COUNT,
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    advanced=holding(
        restoreToOriginalReplicaCount={"type": "boolean"},
        horizontalPodAutoscalerConfig=holding(
            name=TEXT, behavior=holding(scaleUp=SCALING, scaleDown=SCALING)
        ),
    ),
    triggers=several(PROMETHEUS_TRIGGER),
)

SERVICE_MONITOR = holding(
    ("selector", "endpoints"),
    jobLabel=TEXT,
    selector=SELECTOR,
    namespaceSelector=holding(matchNames=several(TEXT), any={"type": "boolean"}),
    endpoints=several(
        holding(
            port=TEXT,
            path=TEXT,
            scheme=TEXT,
            interval=DURATION,
            relabelings=several(
                holding(
                    sourceLabels=several(TEXT), targetLabel=TEXT, replacement=TEXT, action=TEXT, regex=TEXT
                )
            ),
            authorization=holding(type=TEXT, credentials=holding(("key",), name=TEXT, key=TEXT)),
        )
    ),
)

RULE = holding(
    ("expr",),
    alert=TEXT,
    record=TEXT,
    expr=TEXT,
    labels=TEXTS,
    annotations=TEXTS,
    keep_firing_for=DURATION,
    **{"for": DURATION},
)
PROMETHEUS_RULE = holding(
    groups=several(holding(("name", "rules"), name=TEXT, interval=DURATION, rules=several(RULE)))
)

# In addition to these fields, a predictor has those of a pod.
OF_A_PREDICTOR = holding(
    minReplicas=COUNT,
    maxReplicas=COUNT,
    timeout=COUNT,
    deploymentStrategy={"type": "object"},
    autoScaling=holding(
        ("metrics",),
        metrics=several(
            holding(
                ("type", "external"),
                type={"const": "External"},
                external=holding(
                    ("metric", "target"),
                    metric=holding(
                        ("backend", "serverAddress", "query"),
                        backend={"enum": ["prometheus", "graphite"]},
                        serverAddress=TEXT,
                        query=TEXT,
                    ),
                    # KServe reads only `value` of an external metric's target.
                    target=holding(("type", "value"), type={"enum": ["Value"]}, value=TEXT),
                ),
            )
        ),
    ),
)
INFERENCE_SERVICE = holding(("predictor",), predictor={"type": "object"})

GRPC_ROUTE = holding(
    parentRefs=several(
        holding(("name",), group=TEXT, kind=TEXT, namespace=TEXT, name=TEXT, sectionName=TEXT, port=COUNT)
    ),
    hostnames=several(TEXT),
    rules=several(
        holding(
            name=TEXT,
            backendRefs=several(
                holding(("name",), group=TEXT, kind=TEXT, namespace=TEXT, name=TEXT, port=COUNT, weight=COUNT)
            ),
        )
    ),
)

# `ray start` gets these as flags, so all values are strings.
RAY_GROUP: dict[str, Schema] = {"rayStartParams": TEXTS, "template": {"type": "object"}}
RAY_SERVICE = holding(
    ("serveConfigV2", "rayClusterConfig"),
    # YAML in a string.
    serveConfigV2=TEXT,
    rayClusterConfig=holding(
        ("headGroupSpec",),
        rayVersion=TEXT,
        enableInTreeAutoscaling={"type": "boolean"},
        headGroupSpec=holding(("template",), **RAY_GROUP),
        workerGroupSpecs=several(
            holding(
                ("groupName", "minReplicas", "maxReplicas", "template"),
                groupName=TEXT,
                replicas=COUNT,
                minReplicas=COUNT,
                maxReplicas=COUNT,
                **RAY_GROUP,
            )
        ),
    ),
)

CUSTOM: Mapping[str, Schema] = {
    "ScaledObject": kind("keda.sh/v1alpha1", "ScaledObject", SCALED_OBJECT),
    "ServiceMonitor": kind("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
    "PrometheusRule": kind("monitoring.coreos.com/v1", "PrometheusRule", PROMETHEUS_RULE),
    "GRPCRoute": kind("gateway.networking.k8s.io/v1", "GRPCRoute", GRPC_ROUTE),
    "RayService": kind("ray.io/v1", "RayService", RAY_SERVICE),
    "InferenceService": kind("serving.kserve.io/v1beta1", "InferenceService", INFERENCE_SERVICE),
}


def problems_of(manifest: Mapping[str, Any], schema: Schema | None = None) -> list[str]:
    """List the problems of a manifest of one of these kinds, or of a part of one."""
    validator = jsonschema.Draft7Validator(schema or CUSTOM[manifest["kind"]])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]
