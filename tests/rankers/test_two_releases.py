"""transformers 4.57 and 5: rankers of each read the other's models with the same tokens and scores."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import transformers

from farrank_rankers.files.open import open_ranker
from support import two_releases

# Scores of the embedded rankers, in fp32 on one thread of a CPU, with transformers 4.57.6.
QUERY = "How do I parse command line flags?"
DOCUMENTS = [
    "The argparse module makes it easy to write user-friendly command-line interfaces. " * 30,
    "Cats sleep all day. They wake up in the evening, and parse nothing.",
    "naïve café, 漢字 and straße",
]
SCORES = {
    "embedded": [0.40068898, 0.17632045, -0.03487732],
    "embedded:firstp": [-0.62429315, -0.33334029, -0.92161697],
    "embedded:maxp": [-1.24615359, -1.10725403, -3.26097918],
    "embedded:maxsim": [0.47465816, 0.23988211, 0.02627364],
    "embedded:parade-attn": [-1.62473273, -0.98249644, -2.61864328],
    "embedded:parade-rand-l2": [-7.79424381, -7.03164864, -8.52114105],
}


@pytest.mark.parametrize("name", SCORES)
def test_rankers_that_come_with_farrank_score_as_ever(name: str) -> None:
    found = [item.score for item in open_ranker(name).score(QUERY, DOCUMENTS)]
    assert found == pytest.approx(SCORES[name], rel=0, abs=1e-5)


def test_each_release_reads_what_the_other_saved(tmp_path: Path) -> None:
    """FARRANK_OTHER_PYTHON is a Python with the other release of transformers."""
    other = os.environ.get("FARRANK_OTHER_PYTHON")
    if not other:
        pytest.skip("needs a Python with the other release of transformers: FARRANK_OTHER_PYTHON")
    two_releases.write(tmp_path / "here")
    command = [other, "-m", "support.two_releases", str(tmp_path / "here"), str(tmp_path / "there")]
    paths = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    release, *by_the_other = json.loads(done.stdout)
    assert release.partition(".")[0] != transformers.__version__.partition(".")[0]
    assert any("modular" in each for each in by_the_other)
    for folder, theirs in zip(("here", "there"), by_the_other, strict=True):
        ours = two_releases.read(tmp_path / folder)
        assert (
            ours.keys() == theirs.keys() >= {*two_releases.MODEL_TYPES, "artifact", "biencoder", "templated"}
        )
        for name, each in ours.items():
            assert each["tokens"] == theirs[name]["tokens"], (folder, name)
            assert each["scores"] == pytest.approx(theirs[name]["scores"], rel=0, abs=1e-5), (folder, name)
            assert len({round(score, 3) for score in each["scores"]}) == len(each["scores"]), (folder, name)
