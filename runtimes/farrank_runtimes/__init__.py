"""What runs a ranker's encoder and aggregator on a device: one file a runtime, behind one interface.

What must be set before torch, ONNX Runtime, OpenVINO or NNCF is imported is set here, for no module of this
room can import one of them earlier.
"""

import os
import sys

# Spinning threads of OpenMP keep the ones that they wait for from the cores: beside busy neighbours torch was
# 2 to 4 times slower (decision 0020).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Nothing about a ranker or its machine leaves this process.
# ONNX Runtime from 1.29 on reports every session, with names and hashes of the graph, to its maker.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenVINO reports its import through this package, in a forked process that it waits for; NNCF reports its
# calls. Both do without where it is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: importing it fails
