"""Nothing about a ranker or its machine leaves this process: runtimes report nothing to their makers."""

import os
import sys

# ONNX Runtime from 1.29 on reports every session, names and hashes of the graph included, to its maker.
ORT_OPT_OUT = "ORT_DISABLE_TELEMETRY"
# OpenVINO reports its import through this package, in a forked process it waits for; NNCF its calls. Both
# take the package's absence for a no.
OPENVINO_TELEMETRY = "openvino_telemetry"


def switch_off_telemetry() -> None:
    """Keep ONNX Runtime, OpenVINO and NNCF from reporting; before the first of them is imported."""
    os.environ[ORT_OPT_OUT] = "1"
    sys.modules.setdefault(OPENVINO_TELEMETRY, None)  # type: ignore[arg-type]  # None: importing it fails
