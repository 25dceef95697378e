"""Making rankers, and listing the papers', from the command line."""

from __future__ import annotations

import builtins
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES, BiEncoderOptions, LateInteractionOptions
from farrank_rankers.files import save
from farrank_rankers.files.open import open_ranker, open_reader
from farrank_rankers.files.projected import new_projected_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.papers import paper_models
from support.random_weights import write_random_weights

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


def new(farrank: Farrank, *arguments: object) -> Outcome:
    return farrank("rankers", "new", *arguments)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_ranker_is_made_and_opens(
    farrank: Farrank, tiny_backbone: Path, tmp_path: Path, family: str
) -> None:
    out = tmp_path / "new" / "ranker"
    flags = ("--family", family, "--backbone", tiny_backbone, "--out", out, "--random-weights", "--seed", 7)

    outcome = new(farrank, *flags)

    assert (outcome.exit_code, outcome.err) == (0, "")
    opened = open_ranker(out)
    same = new_ranker(family, tiny_backbone, seed=7, pretrained=False)
    assert opened.version == same.version
    assert outcome.out.startswith(f"{out}: {family} on {tiny_backbone.name}, ")
    assert outcome.out.endswith(f"version {same.version}\n")
    assert f"{sum(weight.numel() for weight in same.parameters()):,} parameters" in outcome.out


def test_every_flag_reaches_the_spec(farrank: Farrank, tiny_backbone: Path, tmp_path: Path) -> None:
    sizes = ("--window", 60, "--stride", 40, "--max-document-tokens", 200, "--max-query-tokens", 16)
    options = ("--option", "query_prefix=query: ", "--option", "normalize=false", "--option", "pooling=cls")
    where = ("--backbone", tiny_backbone, "--out", tmp_path / "r", "--random-weights")

    outcome = new(farrank, "--family", "biencoder", *where, *sizes, *options)

    assert outcome.exit_code == 0
    spec = open_ranker(tmp_path / "r").spec
    assert spec.chunking == Chunking("sliding", 60, 40, 200)
    assert spec.max_query_tokens == 16
    assert spec.options == BiEncoderOptions(pooling="cls", normalize=False, query_prefix="query: ")


def test_transformers_of_the_aggregator_start_from_others(
    farrank: Farrank, tiny_backbone: Path, tmp_path: Path
) -> None:
    where = ("--family", "parade-transf-pretr-lateir", "--backbone", tiny_backbone, "--random-weights")
    others = ("--aggregator-backbone", tiny_backbone, "--interaction-backbone", "embedded")

    outcome = new(farrank, *where, *others, "--out", tmp_path / "r")

    assert (outcome.exit_code, outcome.err) == (0, "")
    spec = open_ranker(tmp_path / "r").spec
    assert isinstance(spec.options, LateInteractionOptions)
    assert (spec.options.transformer.layers, spec.options.transformer.width) == (2, 32)
    assert (spec.options.interaction.layers, spec.options.interaction.width) == (6, 384)
    assert spec.provenance["transformer"] == tiny_backbone.name
    assert spec.provenance["interaction"] == "sentence-transformers/all-MiniLM-L6-v2"


def test_a_query_is_padded_on_request(farrank: Farrank, tiny_backbone: Path, tmp_path: Path) -> None:
    where = ("--backbone", tiny_backbone, "--out", tmp_path / "r", "--random-weights")
    assert new(farrank, "--family", "firstp", *where, "--pad-query-to", 32).exit_code == 0
    assert open_ranker(tmp_path / "r").spec.pad_query_to == 32


def test_the_embedded_backbone_comes_with_its_weights(farrank: Farrank, tmp_path: Path) -> None:
    outcome = new(farrank, "--family", "firstp", "--backbone", "embedded", "--out", tmp_path / "r")

    assert outcome.exit_code == 0
    assert "firstp on sentence-transformers/all-MiniLM-L6-v2, 22,5" in outcome.out
    assert open_ranker(tmp_path / "r").version == new_ranker("firstp", "embedded").version


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--family", "nope"], "family is 'nope'; it must be one of firstp, "),
        (["--family", "firstp", "--option", "pooling=max"], "pooling is 'max'; it must be one of mean, cls"),
        (
            ["--family", "firstp", "--option", "pool=cls"],
            "options has the unknown key pool; known are pooling",
        ),
        (["--family", "firstp", "--option", "cls"], "--option cls: must be NAME=VALUE"),
        (["--family", "firstp", "--window", "900"], "would exceed the 512 positions"),
        (
            ["--family", "maxp", "--window", "20", "--stride", "30"],
            "chunking.stride is 30; it must be at most",
        ),
        (["--family", "firstp", "--max-query-tokens", "0"], "max_query_tokens is 0; it must be at least 1"),
        (
            ["--family", "firstp", "--aggregator-backbone", "embedded"],
            "family firstp has no such transformer",
        ),
        (
            ["--family", "firstp", "--backbone", "a/b c"],
            "is neither a folder nor the name of a model on the hub",
        ),
    ],
)
def test_options_that_do_not_fit_end_with_one_line(
    farrank: Farrank, tiny_backbone: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    where = ("--backbone", tiny_backbone, "--out", tmp_path / "r", "--random-weights")

    outcome = new(farrank, *where, *flags)

    assert outcome.exit_code == 2
    assert message in outcome.err
    assert outcome.err.startswith("farrank: ")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_a_folder_that_is_taken_is_left_alone(farrank: Farrank, tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")

    outcome = new(farrank, "--family", "firstp", "--backbone", tiny_backbone, "--out", tmp_path)

    assert outcome.exit_code == 2
    assert f"--out {tmp_path}: must be a new or an empty folder" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_full_disk_is_named(
    farrank: Farrank, monkeypatch: pytest.MonkeyPatch, tiny_backbone: Path, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(save, "save_ranker", full)
    where = ("--backbone", tiny_backbone, "--out", tmp_path / "r", "--random-weights")

    outcome = new(farrank, "--family", "firstp", *where)

    assert (outcome.exit_code, outcome.err) == (2, f"farrank: {tmp_path / 'r'}: No space left on device\n")


def test_the_papers_models_are_listed_without_a_server(farrank: Farrank) -> None:
    outcome = farrank("rankers", "--papers", "--json")

    assert outcome.exit_code == 0
    models = {each["name"]: each for each in json.loads(outcome.out)["models"]}
    assert list(models) == list(paper_models())
    assert models["longp-jina"] | {"parameters": 137} == {
        "name": "longp-jina",
        "family": "longp",
        "backbone": "jinaai/jina-embeddings-v2-base-en",
        "chunking": "first",
        "window": 1431,
        "stride": 1431,
        "max_document_tokens": 1431,
        "parameters": 137,
    }
    assert round(models["longp-jina"]["parameters"] / 1e6) == 137


def test_the_papers_models_are_a_table(farrank: Farrank) -> None:
    lines = farrank("rankers", "--papers").out.splitlines()

    assert lines[0].split() == [
        "name",
        "family",
        "backbone",
        "chunking",
        "window/stride",
        "document",
        "parameters",
    ]
    assert len(lines) == 1 + len(paper_models())
    maxp = next(line.split() for line in lines if line.startswith("maxp-bert"))
    assert maxp == [
        "maxp-bert",
        "maxp",
        "google-bert/bert-base-uncased",
        "sliding",
        "150/100",
        "1431",
        "tokens",
        "108,892,417",
    ]


def test_a_server_is_listed_as_before(farrank: Farrank, server: tuple[str, Any]) -> None:
    outcome = farrank("rankers", "--server", server[0])

    assert outcome.exit_code == 0
    assert "counter" in outcome.out


@pytest.mark.parametrize("flags", [("--papers", "new"), ("new", "--papers")])
@pytest.mark.parametrize("family", ["maxp", "longp", "parade-transf-pretr-lateir"])
def test_papers_make_a_ranker_with_the_papers_limits(
    farrank: Farrank, tmp_path: Path, flags: tuple[str, str], family: str
) -> None:
    where = ("--family", family, "--backbone", "embedded", "--random-weights", "--out", tmp_path / "r")

    outcome = farrank("rankers", *flags, *where)

    assert outcome.exit_code == 0, outcome.err
    spec = open_reader(tmp_path / "r").spec
    assert (spec.chunking.max_document_tokens, spec.max_query_tokens) == (1431, 32)
    assert spec.pad_query_to == (32 if spec.plan == "pair" else None)
    if family != "longp":  # its backbone in the papers is longer than this one
        model = f"{family}-l6-bert" if "pretr" in family else f"{family}-bert"
        assert spec.chunking == paper_models()[model].spec.chunking


def test_a_given_size_precedes_the_papers(farrank: Farrank, tmp_path: Path) -> None:
    where = ("--family", "maxp", "--backbone", "embedded", "--random-weights", "--out", tmp_path / "r")
    farrank("rankers", "new", "--papers", "--max-document-tokens", 900, *where)
    assert open_reader(tmp_path / "r").spec.chunking == Chunking("sliding", 150, 100, 900)


def test_only_new_and_papers_go_together(farrank: Farrank, tmp_path: Path) -> None:
    outcome = farrank("rankers", "--papers", "exports", tmp_path)
    assert (outcome.exit_code, outcome.err) == (2, "farrank: rankers: give either exports or --papers\n")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["new", "--family", "firstp", "--backbone", "embedded", "--out", "r"], "rankers new"),
        (["--papers"], "rankers --papers"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(
    farrank: Farrank, monkeypatch: pytest.MonkeyPatch, arguments: list[str], asked: str
) -> None:
    real_import = builtins.__import__

    def without_torch(name: str, *rest: Any, **keywords: Any) -> Any:
        if name.startswith("farrank_rankers."):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real_import(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_torch)

    outcome = farrank("rankers", *arguments)

    assert outcome.exit_code == 2
    expected = f"farrank: farrank {asked} needs the server extra: pip install 'farrank[server]'"
    assert outcome.err.startswith(expected)


def test_a_projection_makes_a_multi_vector_ranker(
    farrank: Farrank, tiny_backbone: Path, tmp_path: Path
) -> None:
    texts = ["rivers and lakes of the north", "seas of the south"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    backbone = tmp_path / "backbone"
    shutil.copytree(tiny_backbone, backbone)
    write_random_weights(backbone)
    flags = ("--family", "maxsim", "--backbone", backbone, "--projection", 4)

    outcome = new(farrank, *flags, "--projection-texts", tmp_path / "texts.jsonl", "--out", tmp_path / "r")

    assert (outcome.exit_code, outcome.err) == (0, "")
    assert open_ranker(tmp_path / "r").version == new_projected_ranker(backbone, 4, texts).version


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--family", "maxp", "--projection", 4), "--projection: family is maxp; it must be maxsim"),
        (
            ("--family", "maxsim", "--projection", 4, "--option", "mean=false"),
            "--projection determines options and weights; leave out --option",
        ),
        (
            ("--family", "maxsim", "--projection", 4, "--random-weights"),
            "--projection determines options and weights; leave out --random-weights",
        ),
        (
            ("--family", "maxsim", "--projection-texts", "t.jsonl"),
            "--projection-texts is given without --projection",
        ),
    ],
)
def test_a_projection_that_does_not_fit_is_refused(
    farrank: Farrank, tiny_backbone: Path, tmp_path: Path, flags: tuple[object, ...], error: str
) -> None:
    outcome = new(farrank, *flags, "--backbone", tiny_backbone, "--out", tmp_path / "r")

    assert outcome.exit_code == 2
    assert error in outcome.err
    assert not (tmp_path / "r").exists()
