"""Runtimes of a ranker's encoder and aggregator on a device: one file per runtime, behind one interface.

Settings that must precede the import of torch, ONNX Runtime, OpenVINO or NNCF are made here, because no
module of this package can import one of them earlier.
"""

import os
import sys

# Spinning OpenMP threads take cores from the threads that they wait for: next to busy processes torch was 2
# to 4 times slower (decision 0020).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No data about a ranker or its machine leaves this process.
# From 1.29 ONNX Runtime reports every session to its maker, with names and hashes of the graph.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# OpenVINO reports its import through this package, in a forked process that it waits for; NNCF reports its
# calls. Both work without the package.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None: importing it fails
