"""What a server's process imports."""

import subprocess
import sys

SCRIPT = """
import sys
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.run import run
status = run(ServerConfig(rankers={"missing": RankerConfig("/nowhere")}))
import transformers.generation.candidate_generator
print(status, "sklearn.metrics" in sys.modules)
"""


def test_a_server_does_not_spend_its_start_on_scikit_learn() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    assert done.stdout == "2 False\n"
