"""Write Envoy's configuration for replicas outside of Kubernetes: `python deploy/envoy/write_envoy.py`.

Helm's engine renders the chart's template with other addresses, so that both configurations behave alike.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from helm_python import Chart

WRITTEN = Path(__file__).with_name("envoy.yaml")
TEMPLATE = Path(__file__).parents[1] / "helm" / "farrank" / "templates" / "_envoy.tpl"

HEADER = """\
# Envoy in front of several replicas, for callers that do not balance themselves (docs/how-to/scaling.md).
# `python deploy/envoy/write_envoy.py` writes this file from the chart's template.
#
#   envoy --config-path deploy/envoy/envoy.yaml --concurrency 2 --log-level warning
#
# Set the replicas' addresses at the end (a name stands for all of its addresses), and Envoy's own address.
"""

PARAMETERS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 50050,
    "addresses": [{"host": "127.0.0.1", "port": 50051}, {"host": "127.0.0.1", "port": 50052}],
    "service": "farrank.v1.RerankService",
    "maxRequests": 4096,
    "connectionSeconds": 300,
    "choices": 8,
}


def text() -> str:
    """Render the file. The result is the same every time."""
    with tempfile.TemporaryDirectory() as folder:
        templates = Path(folder, "templates")
        templates.mkdir()
        shutil.copy(TEMPLATE, templates)
        Path(folder, "Chart.yaml").write_text("{apiVersion: v2, name: envoy, version: 0.0.0}")
        (templates / "envoy.yaml").write_text('{{ include "farrank.envoyConfig" .Values }}\n')
        with Chart.load(folder) as chart:
            rendered: dict[str, str] = chart.render(PARAMETERS, name="envoy", namespace="envoy")
    return HEADER + rendered["envoy/templates/envoy.yaml"].strip() + "\n"


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
    print(WRITTEN)
