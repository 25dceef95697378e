"""`make train-demo`: train two rankers on Python's documentation, serve the better one and measure it.

Nothing is downloaded: the texts are the interpreter's, the backbone is the embedded model. All files stay in
one folder, from which an interrupted run continues.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from farrank_cli.spawn import spawned_server
from farrank_cli.terminal import Progress
from farrank_cli.terminated import PendingInterrupt, sigterm_interrupts
from farrank_client import Client
from farrank_demo.documentation_pairs import (
    PER_DOCUMENT,
    PairFiles,
    make_pairs,
    write_candidates,
    write_texts,
)
from farrank_demo.questions import (
    FIRST_STAGE,
    RERANKED,
    Question,
    Run,
    ask,
    figures,
    load_qrels,
    load_questions,
    runs,
)
from farrank_exporters.export import export_ranker
from farrank_exporters.texts import divide, python_documentation
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import build_index
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SourceError
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_runtimes.openvino_runtime import computes_bf16
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import drawn
from farrank_training.training_run import FinishedRun, train
from farrank_training.training_set import judged_set
from farrank_training.validation import read_validation_set
from farrank_trec import read_queries

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """The training of one ranker, and its number of queries."""

    family: str
    chunking: Chunking
    config: TrainingConfig
    queries: int


@dataclass(frozen=True, slots=True)
class Course:
    """The settings of `make train-demo`.

    Each lesson after the first begins with the backbone that the one before it trained, because matching a
    chunk is the same task. `candidates` is the number of documents to rerank for every judged question.
    """

    backbone: str | Path
    lessons: Sequence[Lesson]
    per_document: int = PER_DOCUMENT
    candidates: int = 20


def _settings(backbone_learning_rate: float) -> TrainingConfig:
    """Adapt the papers' settings to a few hundred queries; the papers had 352,000."""
    return TrainingConfig(
        loss="ranknet",
        negatives_from=30,
        batch_size=4,
        accumulation=2,
        backbone_learning_rate=backbone_learning_rate,
        learning_rate=1e-3,
        precision="bf16" if computes_bf16() else "fp32",
        dev_depth=10,
        checkpoint_every=20,
        log_every=5,
    )


def fifteen_minutes() -> Course:
    """Give a course of few short windows, which two cores should finish in that time, by estimate."""
    return Course(
        "embedded",
        (
            Lesson("firstp", Chunking("first", 160, 160, 160), _settings(1.5e-4), queries=800),
            Lesson("parade-attn", Chunking("disjoint", 160, 160, 640), _settings(1e-4), queries=200),
        ),
    )


def run_course(
    course: Course,
    documents: Mapping[str, str],
    questions: Sequence[Question],
    index: Path,
    out: Path,
    interrupts: PendingInterrupt,
) -> None:
    """Make pairs, train, export, serve and measure; finished trainings are not repeated."""
    files = PairFiles(out / "data")
    with _step("training pairs"):
        _write_data(course, documents, files)
    trained: list[FinishedRun] = []
    for lesson in course.lessons:
        with _step(f"training {lesson.family}"):
            before = trained[-1].folder if trained else None
            trained.append(_train(course, lesson, files, before, out / lesson.family, interrupts))
            measure = lesson.config.measure
            print(f"   {measure} of the validation queries {trained[-1].measures[measure]:.4f}")
    best = max(trained, key=lambda each: each.measures[course.lessons[0].config.measure])
    with _step(f"exporting {best.folder.name}, the better of the two"):
        _export(best.folder)
    with _step(f"serving it: {len(questions)} judged questions, {course.candidates} candidates each"):
        _print_figures(_served_runs(best.folder, questions, index, course.candidates))


@contextmanager
def _step(what: str) -> Iterator[None]:
    print(f"\n── {what}", flush=True)
    began_s = time.monotonic()
    yield
    print(f"   took {time.monotonic() - began_s:.0f} s", flush=True)


def _write_data(course: Course, documents: Mapping[str, str], files: PairFiles) -> None:
    pairs = make_pairs(documents, course.per_document)
    write_texts(pairs, files)
    index = files.folder / "index"
    build_index((IndexDocument(*each) for each in pairs.documents.items()), index, overwrite=True)
    progress = Progress("queries searched for", len(pairs.qrels))
    depth = max(lesson.config.negatives_from for lesson in course.lessons)
    write_candidates(pairs, index, files, depth, progress)
    progress.end()
    print(f"   {len(pairs.documents)} documents in {files.collection}")
    print(f"   {len(pairs.train)} queries to train on, {len(pairs.dev)} held back for validation")


def _train(
    course: Course,
    lesson: Lesson,
    files: PairFiles,
    before: Path | None,
    out: Path,
    interrupts: PendingInterrupt,
) -> FinishedRun:
    ranker = _beginner(course, lesson, before)
    known = list(read_queries(files.train))
    chosen = [known[number] for number in drawn(min(lesson.queries, len(known)), len(known), "train-demo")]
    config = lesson.config
    training_set = judged_set(
        files.train,
        files.qrels,
        files.candidates,
        [files.collection],
        negatives=config.negatives,
        top=config.negatives_from,
        query_ids=chosen,
    )
    validation = read_validation_set(
        files.dev, files.qrels, files.candidates, [files.collection], depth=config.dev_depth
    )
    return train(
        ranker,
        training_set,
        config,
        out,
        validation=validation,
        resume=True,
        watcher=Progress("steps"),
        interrupts=interrupts,
    )


def _beginner(course: Course, lesson: Lesson, before: Path | None) -> Ranker:
    """Make the initial ranker of a lesson."""
    ranker = new_ranker(lesson.family, course.backbone, lesson.chunking)
    if before is not None:
        teacher = open_ranker(before)
        ranker.encoder.load_state_dict(teacher.encoder.state_dict())
        origin = {"backbone_trained_as": f"{teacher.spec.family} {teacher.version}"}
        spec = replace(ranker.spec, provenance=dict(ranker.spec.provenance) | origin)
        ranker.reader = Reader(spec, ranker.reader.tokenizer, ranker.reader.backbone)
    return ranker


def _export(artifact: Path) -> None:
    measured, calibration = divide(python_documentation(), "Python's documentation")
    steps = Progress("steps", every_s=0)

    def progress(text: str, done: int, total: int) -> None:
        if done == 0:
            steps.begin("steps", total)
        steps(done, text)

    export = export_ranker(
        open_ranker(artifact),
        artifact,
        "onnx",
        "fp32",
        measured=measured,
        calibration=calibration,
        replace_existing=True,
        progress=progress,
    )
    steps.end()
    worst = max(each.max_difference for each in export.manifest.parity)
    print(f"   {export.folder}: scores differ by {worst:.2g} at most")


def _served_runs(artifact: Path, questions: Sequence[Question], index: Path, k: int) -> dict[str, Run]:
    """Ask both rankers of one server, and give the orders by the names under which they are printed."""
    arguments = [
        f"--index=pydoc={index}",
        f"--ranker=trained={artifact}",
        "--ranker=embedded=embedded:maxsim",
    ]
    orders: dict[str, Run] = {}
    with spawned_server(arguments) as server, Client(server.address) as client:
        client.wait_until_healthy(TIMEOUT_S)
        for ranker in client.rankers().rankers:
            runs_on = f"{ranker.runtime} {ranker.device} {ranker.precision}"
            print(f"   ranker {ranker.name}: {ranker.family} over {ranker.backbone}, {runs_on}")
            progress = Progress(f"questions asked of {ranker.name}", len(questions))
            rankings = ask(client, questions, k, ranker=ranker.name, timeout_s=TIMEOUT_S, progress=progress)
            progress.end()
            found = runs(rankings)
            orders[FIRST_STAGE] = found[FIRST_STAGE]
            orders[f"{ranker.name} {ranker.family}"] = found[RERANKED]
    return orders


def _print_figures(orders: Mapping[str, Run]) -> None:
    qrels = load_qrels()
    for name, run in orders.items():
        judged = {query_id: qrels[query_id] for query_id in run}
        values = "   ".join(f"{measure} {value:.4f}" for measure, value in figures(judged, run))
        print(f"   {name:<24}{values}")


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(prog="farrank_demo.train_demo", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, help="the index of the embedded corpus")
    parser.add_argument("--out", type=Path, required=True, help="folder of all results")
    arguments = parser.parse_args()

    began_s = time.monotonic()
    documents = {document.doc_id: document.text for document in read_pydoc()}
    try:
        with sigterm_interrupts() as interrupts:
            run_course(
                fifteen_minutes(), documents, load_questions(), arguments.index, arguments.out, interrupts
            )
    except KeyboardInterrupt:
        print(f"\n{arguments.out}: stopped; the same command continues", file=sys.stderr)
        return 130
    except (TrainingError, SourceError) as error:
        # A run with other settings or another Python's texts began there, or its files are damaged.
        print(f"\n{error}\nremove {arguments.out} to start again", file=sys.stderr)
        return 2
    print(f"\n{arguments.out}: done in {(time.monotonic() - began_s) / 60:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
