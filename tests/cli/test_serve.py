"""`farrank serve`: its flags, and the configuration that they give."""

from __future__ import annotations

import argparse
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farrank_cli.commands import serve
from farrank_cli.exit_codes import CommandError
from farrank_first_stage.bm25 import Bm25Config
from farrank_server.config.schema import JudgementsConfig, RankerConfig, ServerConfig
from farrank_server.config.server_config import build_config

if TYPE_CHECKING:
    from support.commands import Outcome

Farrank = Callable[..., "Outcome"]


def read(*arguments: str, **environment: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    return build_config(serve.read_settings(parser.parse_args(arguments), environment))


def test_no_flags_are_the_defaults() -> None:
    assert read() == ServerConfig()


def test_each_flag_sets_its_key() -> None:
    config = read(
        *("--ranker", "a=./models/a", "--ranker", "b.v2=org/name=x", "--index", "docs=/data/docs"),
        *("--judgements", "docs=q.tsv,/data/qrels.gz"),
        *("--host", "0.0.0.0", "--port", "0", "--metrics-port", "none", "--device", "cpu", "--threads", "2"),
        *(
            "--precision",
            "bf16",
            "--set",
            "batching.max_batch_tokens=4096",
            "--set",
            "rankers.a.precision=fp32",
        ),
    )

    assert config.rankers == {
        "a": RankerConfig("./models/a", precision="fp32"),
        "b.v2": RankerConfig("org/name=x", precision="bf16"),
    }
    assert config.first_stage.indexes == {"docs": Bm25Config(Path("/data/docs"))}
    assert config.listen.http.judgements == {"docs": JudgementsConfig(Path("q.tsv"), Path("/data/qrels.gz"))}
    assert (config.listen.host, config.listen.port, config.listen.metrics_port) == ("0.0.0.0", 0, None)
    assert (config.device.name, config.device.threads) == ("cpu", 2)
    assert config.batching.max_batch_tokens == 4096


@pytest.mark.parametrize("given", ["docs", "docs=q.tsv", "docs=q.tsv,", "docs=q.tsv,b,c", "=q.tsv,b"])
def test_judgements_are_two_files_of_an_index(given: str) -> None:
    with pytest.raises(CommandError, match=rf"^--judgements {given}: must be INDEX=QUESTIONS,QRELS$"):
        read("--judgements", given)


def test_a_text_may_be_set_to_nothing() -> None:
    config = read("--ranker", "a=./models/a", "--set", "rankers.a.query_prefix=")
    assert config.rankers["a"].query_prefix == ""


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "farrank.toml"
    path.write_text("[listen]\nhost = 'file'\nport = 1\nmetrics_port = 2\n", encoding="utf-8")

    listen = read(
        "--config", str(path), "--port", "5", FARRANK_LISTEN__PORT="3", FARRANK_LISTEN__METRICS_PORT="4"
    ).listen

    assert (listen.host, listen.port, listen.metrics_port) == ("file", 5, 4)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """The configurations that would be served."""
    served: list[ServerConfig] = []
    module = types.ModuleType("farrank_server.run")

    def run(
        config: ServerConfig, pid_file: Path | None, reread: Callable[[], ServerConfig], look: object
    ) -> int:
        served.append(config)
        # The server would report here that it is up.
        return 7 if pid_file is None else int(pid_file.name)

    vars(module)["run"] = run
    monkeypatch.setitem(sys.modules, "farrank_server.run", module)
    return served


def test_the_servers_exit_code_is_the_commands(farrank: Farrank, served: list[ServerConfig]) -> None:
    assert farrank("serve", "--port", "0").exit_code == 7
    assert served[0].listen.port == 0
    assert farrank("serve", "--pid-file", "8").exit_code == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--port", "http"],
            "farrank: listen.port: 'http' is not allowed; it must be a whole number (--port)\n",
        ),
        (
            ["--set", "listen.prot=1"],
            "farrank: listen.prot: there is no such key (--set listen.prot=1); did you mean listen.port?\n",
        ),
        (["--ranker", "minilm"], "farrank: --ranker minilm: must be NAME=SOURCE\n"),
        (["--ranker", "minilm="], "farrank: --ranker minilm=: must be NAME=SOURCE\n"),
        (["--set", "=1"], "farrank: --set =1: must be KEY=VALUE\n"),
        (["--config", "none.yaml"], "farrank: none.yaml: No such file or directory\n"),
    ],
)
def test_a_wrong_configuration_stops_the_start_with_one_line(
    farrank: Farrank, served: list[ServerConfig], arguments: list[str], message: str
) -> None:
    outcome = farrank("serve", *arguments)

    assert (outcome.exit_code, outcome.err) == (2, message)
    assert served == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("ranker.json", "[" * 200_000, "it is nested more than 100 levels deep"),
        ("config.json", '{"a":' * 200_000, "it is nested more than 100 levels deep"),
        ("config.json", "[" * 101 + "]" * 101, "it is nested more than 100 levels deep"),
        ("config.json", " " * (16 * 2**20 + 1), "it has more than 16777216 bytes"),
        ("tokenizer.json", "[" * 200_000, "it is nested more than 100 levels deep"),
        ("tokenizer_config.json", "[" * 200_000, "it is nested more than 100 levels deep"),
    ],
)
def test_a_rankers_file_beyond_measure_stops_the_start_with_one_line(
    farrank: Farrank,
    served: list[ServerConfig],
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    name: str,
    text: str,
    problem: str,
) -> None:
    folder = tmp_path / "maxp"
    shutil.copytree(tiny_rankers["maxp"], folder)
    (folder / name).write_text(text)

    outcome = farrank("serve", "--dry-run", "--port=0", "--metrics-port=none", f"--ranker=a={folder}")

    assert outcome.exit_code == 2
    assert outcome.err.startswith(f"farrank: rankers.a: {folder}")
    assert name in outcome.err
    assert problem in outcome.err
    assert outcome.err.count("\n") == 1
    assert len(outcome.err) < 1000


def test_a_wrong_variable_is_named(
    farrank: Farrank, served: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARRANK_RANKERS__MINILM__PRECISION", "fp8")

    outcome = farrank("serve")

    assert outcome.exit_code == 2
    assert "rankers.minilm.precision: 'fp8'" in outcome.err
    assert "(FARRANK_RANKERS__MINILM__PRECISION)" in outcome.err


def test_several_problems_are_several_lines(farrank: Farrank, served: list[ServerConfig]) -> None:
    outcome = farrank("serve", "--port", "http", "--set", "limits.max_documents=0", "--set", "x.y=1")

    assert outcome.exit_code == 2
    assert [line.split(": ")[0] for line in outcome.err.removeprefix("farrank: ").splitlines()] == [
        "x.y",
        "listen.port",
        "limits.max_documents",
    ]
    assert served == []


def test_the_effective_configuration_is_printed(farrank: Farrank, served: list[ServerConfig]) -> None:
    outcome = farrank("serve", "--port", "0", "--print-config")

    assert outcome.exit_code == 0
    assert "  port: 0  # --port" in outcome.out.splitlines()
    assert '  host: "127.0.0.1"  # default' in outcome.out.splitlines()
    assert served == []


def test_a_dry_run_checks_everything_and_loads_nothing(
    farrank: Farrank, served: list[ServerConfig], tmp_path: Path
) -> None:
    flags = ["--port=0", "--metrics-port=none"]
    good = farrank("serve", "--dry-run", *flags)
    wrong = ["--ranker=a=/nowhere", "--ranker=b=embedded", "--set=rankers.b.window=100000"]
    bad = farrank("serve", "--dry-run", *flags, *wrong, "--index", f"docs={tmp_path}")

    assert (good.exit_code, good.out) == (0, "the configuration can be served\n")
    assert bad.exit_code == 2
    assert [line.split(": ")[0] for line in bad.err.removeprefix("farrank: ").splitlines()] == [
        "first_stage.indexes.docs.path",
        "rankers.a",
        "rankers.b",
    ]
    assert served == []
