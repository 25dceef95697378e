"""Save rankers of a finished experiment as small differences from the base model of their encoder.

Each ranker is the passage ranker's frozen encoder and a head trained on its output, on Biased and then on
Far, with seed 0; the seed was chosen before any was measured. FirstP, MaxP and PARADE Attn of one run come
with the project as `embedded:NAME`; so does RAND-L2, from another run on the same encoder.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from farrank_experiments.asking import Values, ask, by_aggregators
from farrank_experiments.contenders import Contender
from farrank_experiments.plan import ExperimentPlan
from farrank_experiments.questions import BIASED, FAR, NATURAL
from farrank_experiments.settings import digest_of
from farrank_rankers.chunking import WHOLE_DOCUMENT, adjusted
from farrank_rankers.files.difference import save_difference
from farrank_rankers.files.model_files import SPEC_FILE, locate
from farrank_rankers.files.open import open_ranker
from farrank_training.errors import TrainingError

SEED = 0
CONDITIONS = {"Biased": BIASED, "Far": FAR, "articles": NATURAL}
DATA = "SQuAD's questions and paragraphs (Rajpurkar et al., EMNLP 2016), CC BY-SA 4.0"


def keep_rankers(plan: ExperimentPlan, out: Path) -> Iterator[Path]:
    """Write the plan's finished rankers on the frozen encoder, and give their folders.

    If the encoder came from another ranker, they are saved as differences from that ranker. The heads on
    vectors are measured again after saving, because saving rounds the weights.
    Raises: TrainingError if the backbone has random weights.
    """
    settings = plan.settings
    if not settings.pretrained:
        raise TrainingError("--keep needs a backbone with weights: leave out --quick")
    base, name = settings.encoder or settings.backbone, locate(settings.backbone).name
    encoder = f"{settings.passage_questions} for the encoder, {settings.triples} more"
    flags = ["--keep", "FOLDER"]
    if settings.whole.precision != "fp32":
        flags = ["--precision", settings.whole.precision, *flags]
    if settings.encoder:
        encoder = f"{settings.triples} on the encoder of {settings.encoder}"
        flags = ["--encoder", settings.encoder, *flags]
    for contender in plan.contenders:
        ranker, folder = plan.frozen_ranker(contender, FAR, SEED), out / contender.name
        whole = adjusted(ranker.spec.chunking, max_document_tokens=WHOLE_DOCUMENT)
        options = ranker.spec.options
        if (placed := ranker.spec.most_chunks()) is not None:
            options = replace(options, trained_chunks=placed)  # type: ignore[call-arg]
        ranker.reader.spec = replace(ranker.spec, backbone=name, chunking=whole, options=options)
        save_difference(ranker, folder, base)
        reached = _reached(plan, contender, folder)
        provenance = {
            "data": DATA,
            "command": f"make experiment EXPERIMENT_ARGS='{' '.join(flags)}'",
            "settings": digest_of(asdict(settings)),
            "seed": str(SEED),
            "questions": encoder,
            "MRR": ", ".join(f"{of} {fmean(reached[each].values()):.3f}" for of, each in CONDITIONS.items()),
            "candidates": str(settings.windows.candidates),
        }
        told = replace(ranker.spec, provenance=provenance)
        (folder / SPEC_FILE).write_text(told.to_json(), encoding="utf-8")
        yield folder


def _reached(plan: ExperimentPlan, contender: Contender, folder: Path) -> Values:
    if not contender.has_vectors:
        return plan.results()["frozen"][contender.name][FAR][SEED]
    opened = {"it": open_ranker(folder).aggregator}
    values: Values = {}
    for vectors, questions in plan.asked_vectors():
        values |= ask(by_aggregators(opened, vectors), questions)["it"]
    return values
