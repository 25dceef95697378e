"""Rankers of a finished experiment, as small differences from the backbone that they were trained from.

Each is the encoder of the passage ranker under an aggregator that was trained on its vectors, on Biased and
then on Far, with seed 0: which of the seeds was settled before they were measured. FirstP, MaxP and PARADE
Attn of one run come with the project as `embedded:NAME`.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from farrank_experiments.plan import Plan
from farrank_experiments.questions import BIASED, FAR, NATURAL
from farrank_experiments.settings import digest_of
from farrank_rankers.files.difference import save_difference
from farrank_rankers.files.model_files import locate
from farrank_training.errors import TrainingError

SEED = 0
CONDITIONS = {"Biased": BIASED, "Far": FAR, "articles": NATURAL}
COMMAND = "make experiment EXPERIMENT_ARGS='--whole-rankers --keep FOLDER'"
DATA = "SQuAD's questions and paragraphs (Rajpurkar et al., EMNLP 2016), CC BY-SA 4.0"


def keep_rankers(plan: Plan, out: Path) -> Iterator[Path]:
    """Write the plan's rankers on a frozen encoder, whose steps are done, and give their folders.

    Raises: TrainingError if the backbone began with random weights.
    """
    if not plan.settings.pretrained:
        raise TrainingError("--keep needs a backbone with weights: leave out --quick")
    found = plan.results()["frozen"]
    for contender in plan.contenders:
        if not contender.has_vectors:
            continue
        ranker = plan.frozen_ranker(contender, FAR, SEED)
        values = found[contender.name][FAR][SEED]
        reached = {name: fmean(values[condition].values()) for name, condition in CONDITIONS.items()}
        provenance = {
            "data": DATA,
            "command": COMMAND,
            "settings": digest_of(asdict(plan.settings)),
            "seed": str(SEED),
            "questions": f"{plan.settings.passage_questions} for the encoder, {plan.settings.triples} more",
            "MRR": ", ".join(f"{name} {value:.3f}" for name, value in reached.items()),
            "candidates": str(plan.settings.windows.candidates),
        }
        name = locate(plan.settings.backbone).name
        ranker.reader.spec = replace(ranker.spec, backbone=name, provenance=provenance)
        folder = out / contender.name
        save_difference(ranker, folder, plan.settings.backbone)
        yield folder
