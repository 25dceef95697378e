import os
from pathlib import Path

import pytest

from support.asked_server import AskedServer


@pytest.fixture(scope="session")
def server() -> AskedServer:
    return AskedServer.read(Path(os.environ["FARRANK_ASKED"]))
