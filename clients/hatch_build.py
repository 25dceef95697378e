"""Compile the protobuf stubs when hatchling builds the client, in editable installs too.

A wheel also gets the wire, `farrank`, from the folder `proto`: beside this one in the repository, and inside
it in the source distribution.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTOS = ("farrank/v1/rerank.proto", "farrank/v1/admin.proto")


class ProtobufBuildHook(BuildHookInterface[Any]):
    """Write `*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` next to each `.proto`."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the protos before hatchling collects the files of the wheel.

        Raises: RuntimeError if protoc refuses a file.
        """
        # Imported here, because hatchling also imports this module when it only reads the metadata.
        from grpc_tools import protoc  # type: ignore[import-not-found]  # only builds have it

        inside = Path(self.root, "proto")
        root = inside if inside.is_dir() else Path(self.root).parent / "proto"
        arguments = [f"--{kind}_out={root}" for kind in ("python", "pyi", "grpc_python")]
        well_known = Path(protoc.__file__).parent / "_proto"
        command = ["protoc", f"-I{root}", f"-I{well_known}", *arguments, *PROTOS]
        if protoc.main(command) != 0:
            raise RuntimeError(f"protoc failed on {PROTOS}; its own message is printed above")
        if version != "editable":  # which has the folder itself on its path
            build_data["force_include"][str(root / "farrank")] = "farrank"
