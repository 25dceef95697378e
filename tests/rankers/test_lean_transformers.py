"""The modules that a process imports with transformers."""

import subprocess
import sys

SCRIPT = """
import sys
import farrank_server.run, farrank_training.training_run
import farrank_rankers.families.parade_transformer
import transformers.generation.candidate_generator
print([name for name in ("sklearn", "scipy.optimize") if name in sys.modules])
import sklearn.metrics, scipy.optimize
print(sklearn.metrics.accuracy_score([1, 0], [1, 1]))
"""


def test_a_process_does_not_spend_its_start_on_what_no_ranker_needs_and_others_may() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n0.5\n"
