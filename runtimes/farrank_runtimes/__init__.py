"""What runs a ranker's encoder and aggregator on a device: one file a runtime, behind one interface.

Nothing about a ranker or its machine leaves this process: the libraries' reports to their makers are switched
off here, because no module of this room can import one of them before.
"""

import os
import sys

# ONNX Runtime from 1.29 on reports every session, with names and hashes of the graph, to its maker.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenVINO reports its import through this package, in a forked process that it waits for; NNCF reports its
# calls. Both do without where it is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: importing it fails
