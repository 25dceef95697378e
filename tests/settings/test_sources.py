"""The configuration read from a file, the environment and flags."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from farrank_first_stage.bm25 import Bm25Config, Bm25Rm3Config, Rm3Config
from farrank_first_stage.fusion import FusionConfig
from farrank_first_stage.kinds import KINDS
from farrank_server.config.schema import RankerConfig, ServerConfig
from farrank_server.config.server_config import build_config
from farrank_settings import sources as config_sources
from farrank_settings.errors import ConfigError
from farrank_settings.sources import EVERY, Setting


def from_flags(**values: object) -> list[Setting]:
    """Make settings as flags do: `listen__port="0"` for `--set listen.port=0`."""
    return [Setting(tuple(key.split("__")), value, f"--set {key}") for key, value in values.items()]


def build(*layers: list[Setting]) -> ServerConfig:
    return build_config([setting for layer in layers for setting in layer])


def from_text(folder: Path, text: str, name: str = "farrank.yaml") -> list[Setting]:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return config_sources.from_file(path)


def environment(**variables: str) -> list[Setting]:
    return config_sources.from_environment(ServerConfig, variables)


def test_without_options_the_tree_is_the_default_one() -> None:
    assert build() == ServerConfig()


def test_reading_the_configuration_does_not_import_torch() -> None:
    """That takes seconds, and the message about an unknown key lists the keys of every kind of index."""
    script = (
        "import sys\n"
        "from farrank_server.config.server_config import config_schema\n"
        "config_schema()\n"
        "print('farrank_first_stage.fusion' in sys.modules, 'torch' in sys.modules)\n"
    )
    read = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (read.stdout, read.stderr) == ("True False\n", "")


YAML = """
rankers:
  long: {source: ./models/long, precision: bf16, window: 256}
listen: {port: 0, metrics_port: null}
first_stage:
  indexes:
    pydoc: {path: /data/pydoc, rm3: {feedback_terms: 20}}
batching:
cache_bytes: 0
"""

TOML = """
cache_bytes = 0
[rankers.long]
source = "./models/long"
precision = "bf16"
window = 256
[listen]
port = 0
metrics_port = "none"
[first_stage.indexes.pydoc]
path = "/data/pydoc"
rm3 = {feedback_terms = 20}
"""


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.yml", YAML), ("a.toml", TOML)])
def test_a_file_says_it_all(tmp_path: Path, name: str, text: str) -> None:
    config = build(from_text(tmp_path, text, name))

    assert config.rankers == {"long": RankerConfig("./models/long", precision="bf16", window=256)}
    assert (config.listen.port, config.listen.metrics_port) == (0, None)
    assert config.first_stage.indexes == {
        "pydoc": Bm25Config(Path("/data/pydoc"), rm3=Rm3Config(feedback_terms=20))
    }
    assert config.batching == ServerConfig().batching
    assert config.cache_bytes == 0


def test_flags_override_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = from_text(tmp_path, "listen: {host: file, port: 1, metrics_port: 2}")
    variables = environment(FARRANK_LISTEN__PORT="3", FARRANK_LISTEN__METRICS_PORT="4")

    listen = build(file, variables, from_flags(listen__metrics_port="5")).listen

    assert (listen.host, listen.port, listen.metrics_port) == ("file", 3, 5)


def test_sources_add_entries_to_one_mapping(tmp_path: Path) -> None:
    file = from_text(tmp_path, "rankers: {a: {source: one}}")

    rankers = build(file, environment(FARRANK_RANKERS__B__SOURCE="two"), from_flags(rankers__a__window="9"))

    assert rankers.rankers == {"a": RankerConfig("one", window=9), "b": RankerConfig("two")}


def test_every_speaks_of_all_entries_even_the_default_one() -> None:
    precise = from_flags(**{f"rankers__{EVERY}__precision": "bf16"})

    assert build(precise).rankers == {"minilm": RankerConfig(precision="bf16")}
    named = from_flags(rankers__a__source="one", rankers__b__source="two", rankers__b__precision="fp32")
    assert [each.precision for each in build(precise, named).rankers.values()] == ["bf16", "fp32"]


def test_every_speaks_of_no_keys_that_are_fixed() -> None:
    with pytest.raises(ConfigError) as caught:
        build(from_flags(**{f"limits__{EVERY}": "5"}))

    (problem,) = caught.value.problems
    assert problem.startswith("limits.*: there is no such key (--set limits__*); known here: max_documents, ")


def test_flags_set_how_torch_serves() -> None:
    config = build(from_flags(rankers__minilm__packing="packed", device__compile="true"))

    assert config.rankers["minilm"].packing == "packed"
    assert config.device.compile
    with pytest.raises(ConfigError, match=r"^rankers\.minilm\.packing: 'tight' is not allowed"):
        build(from_flags(rankers__minilm__packing="tight"))


def test_a_default_entry_can_be_changed_by_name() -> None:
    assert build(from_flags(rankers__minilm__window="64")).rankers == {"minilm": RankerConfig(window=64)}


def test_an_optional_branch_comes_and_goes(tmp_path: Path) -> None:
    file = from_text(tmp_path, "first_stage: {indexes: {x: {path: p, rm3: {}}}}")

    assert build(file).first_stage.indexes["x"] == Bm25Config(Path("p"), rm3=Rm3Config())
    without = build(file, from_flags(first_stage__indexes__x__rm3="none"))
    assert without.first_stage.indexes["x"] == Bm25Config(Path("p"))


def test_an_index_has_the_options_of_its_kind(tmp_path: Path) -> None:
    file = from_text(tmp_path, "first_stage: {indexes: {x: {path: p}, y: {kind: rm3, path: q, b: 0.9}}}")

    indexes = build(file, from_flags(first_stage__indexes__x__k1="1.2")).first_stage.indexes

    assert indexes == {"x": Bm25Config(Path("p"), k1=1.2), "y": Bm25Rm3Config(Path("q"), b=0.9)}
    assert indexes["y"].kind == "rm3"
    wrong = from_text(
        tmp_path, "first_stage: {indexes: {x: {kind: bm52, path: p}, y: {path: q, pth: r, k1: -1.0}, z: {}}}"
    )
    with pytest.raises(ConfigError) as caught:
        build(wrong)
    where = f"({tmp_path / 'farrank.yaml'})"
    assert list(caught.value.problems) == [
        f"first_stage.indexes.x.kind: 'bm52' is not allowed; it must be one of {', '.join(KINDS)} {where}",
        f"first_stage.indexes.y.pth: there is no such key {where}; did you mean first_stage.indexes.y.path?",
        f"first_stage.indexes.y.k1: -1.0 is not allowed; it must be at least 0 {where}",
        f"first_stage.indexes.z.path: a value is required {where}",
    ]


def test_an_index_of_a_kind_is_printed_and_read_back(tmp_path: Path) -> None:
    settings = from_flags(first_stage__indexes__x__kind="rm3", first_stage__indexes__x__path="p")
    config = build(settings)
    printed = config_sources.to_yaml(config, settings)
    assert build(from_text(tmp_path, printed)) == config


def test_variables_of_others_are_left_alone() -> None:
    assert (
        environment(FARRANK_PORT="tcp://10.0.0.1:1", FARRANK_SERVICE_HOST="h", FARRANK_DATA="d", HOME="/")
        == []
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            from_flags(listen__prot="1"),
            "listen.prot: there is no such key (--set listen__prot); did you mean listen.port?",
        ),
        (from_flags(port="1"), "port: there is no such key (--set port); did you mean listen.port?"),
        (
            from_flags(rankers__a__sorce="x"),
            "rankers.a.sorce: there is no such key (--set rankers__a__sorce); did you mean rankers.a.source?",
        ),
        (
            from_flags(listen__port__x="1"),
            "listen.port.x: there is no such key (--set listen__port__x); listen.port holds one value",
        ),
        (from_flags(xyzzy="1"), "xyzzy: there is no such key (--set xyzzy); known here: rankers, listen, "),
        (
            environment(FARRANK_LISTEN_PORT="1"),
            "listen_port: there is no such key (FARRANK_LISTEN_PORT); did you mean listen.port?",
        ),
        (
            environment(FARRANK_CACHE_BYTE="1"),
            "cache_byte: there is no such key (FARRANK_CACHE_BYTE); did you mean cache_bytes?",
        ),
        (
            from_flags(listen__port="http"),
            "listen.port: 'http' is not allowed; it must be a whole number (--set listen__port)",
        ),
        (
            from_flags(listen__port=True),
            "listen.port: True is not allowed; it must be a whole number (--set listen__port)",
        ),
        (
            from_flags(listen__port="99999"),
            "listen.port: 99999 is not allowed; it must be between 0 and 65535",
        ),
        (
            from_flags(rankers__a__window="0"),
            "rankers.a.window: 0 is not allowed; it must be at least 1 (--set rankers__a__window)",
        ),
        (
            from_flags(rankers__a__precision="fp8"),
            "rankers.a.precision: 'fp8' is not allowed; it must be fp32 or fp16 or bf16 or int8 or none (",
        ),
        (from_flags(listen="1"), "listen: '1' is not allowed; it holds keys (--set listen)"),
        (
            from_flags(rankers={}),
            "rankers: {} is not allowed; it must be at least one ranker (--set rankers)",
        ),
        (
            from_flags(first_stage__indexes__x__k1="1"),
            "first_stage.indexes.x.path: a value is required (--set first_stage__indexes__x__k1)",
        ),
        (
            from_flags(batching__max_batch_tokens="many"),
            "batching.max_batch_tokens: 'many' is not allowed; it must be a whole number or none",
        ),
        (
            from_flags(batching__max_padding_ratio=10**400),  # larger than any float
            f"batching.max_padding_ratio: {10**400} is not allowed; it must be a number or none (",
        ),
    ],
)
def test_a_wrong_key_or_value_is_one_line_that_names_it(settings: list[Setting], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(settings)

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "listen: {port: 1", "line 1"),
        ("a.yaml", "listen:\n  port: 1\n port: 2", "line 3"),
        ("a.yaml", "1: x", "1: a key must be text; quote it"),
        ("a.yaml", "just words", "the configuration: 'just words' is not allowed; it holds keys"),
        ("a.toml", "[listen]\nport = x", "line 2"),
        ("a.yaml", "listen: {host: 2026-13-01}", "month must be in 1..12"),
        ("a.toml", f"cache_bytes = {'9' * 5000}", "Exceeds the limit (4300 digits)"),
        ("a.yaml", "limits: {max_documents: 2026-01-01}", "datetime.date(2026, 1, 1) is not allowed"),
        ("a.yaml", "[" * 3000, "it is nested more than 20 levels deep"),
        ("a.toml", "a = " + "[" * 3000, "it is nested more than 20 levels deep"),
        ("a.yaml", "a: " + "[" * 21 + "]" * 21, "it is nested more than 20 levels deep"),
        ("a.yaml", "a: &a {b: *a}", "it is nested more than 20 levels deep"),
        (
            "a.yaml",
            "a: &a [1, 2, 3, 4, 5, 6, 7, 8]\n"
            + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in pairwise("abcdefgh")),
            "it holds more than 100000 values",
        ),
        ("a.yaml", "#" * (2**20 + 1), "it has more than 1048576 bytes"),
        ("a.json", "{}", "must end in .yaml, .yml or .toml"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(from_text(tmp_path, text, name))

    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config_sources.from_file(tmp_path / "none.yaml")


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    file = from_text(
        tmp_path,
        """
rankers: {a: {source: x, window: 0, stride: many}, b: {precision: fp8}}
listen: {prot: 1, port: 99999, metrics_port: -1}
first_stage: {default_k: 0, indexes: {docs: {k1: -1}}}
""",
    )
    with pytest.raises(ConfigError) as caught:
        build(file, from_flags(cache_bytes="much", limits__default_timeout_s="inf"))
    problems = [problem.split(" (")[0] for problem in caught.value.problems]
    assert sorted(problems) == [
        "cache_bytes: 'much' is not allowed; it must be a whole number",
        "first_stage.default_k: 0 is not allowed; it must be at least 1",
        "first_stage.indexes.docs.path: a value is required",
        "limits.default_timeout_s: 'inf' is not allowed; it must be a number",
        "listen.metrics_port: -1 is not allowed; it must be between 0 and 65535",
        "listen.port: 99999 is not allowed; it must be between 0 and 65535",
        "listen.prot: there is no such key",
        "rankers.a.stride: 'many' is not allowed; it must be a whole number or none",
        "rankers.a.window: 0 is not allowed; it must be at least 1",
        "rankers.b.precision: 'fp8' is not allowed; it must be fp32 or fp16 or bf16 or int8 or none",
    ]
    assert str(caught.value).splitlines() == list(caught.value.problems)


def test_a_key_that_only_sounds_alike_is_not_suggested() -> None:
    with pytest.raises(ConfigError) as caught:
        build(from_flags(rankers__a__max_chunks="3"))
    assert "did you mean" not in str(caught.value)
    assert "known here: source, download, " in str(caught.value)


def test_the_effective_configuration_says_where_each_value_came_from(tmp_path: Path) -> None:
    settings = [
        *from_text(tmp_path, YAML),
        *environment(FARRANK_LISTEN__PORT="3"),
        *from_flags(**{f"rankers__{EVERY}__precision": "fp32", "first_stage__default_k": "7"}),
    ]
    config = build(settings)
    text = config_sources.to_yaml(config, settings)
    lines = text.splitlines()
    assert "  port: 3  # FARRANK_LISTEN__PORT" in lines
    assert f"  metrics_port: null  # {tmp_path}/farrank.yaml" in lines
    assert '  host: "127.0.0.1"  # default' in lines
    assert f'    precision: "fp32"  # --set rankers__{EVERY}__precision' in lines
    assert "  default_k: 7  # --set first_stage__default_k" in lines
    assert build(from_text(tmp_path, text, "printed.yaml")) == config


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert build(from_text(tmp_path, "# all defaults\n")) == ServerConfig()


def test_lists_of_texts_come_from_files_and_from_flags(tmp_path: Path) -> None:
    origins = ("https://a.example", "http://localhost:3000")
    file = from_text(tmp_path, f"listen: {{http: {{port: 8080, cors_origins: [{', '.join(origins)}]}}}}")
    assert build(file).listen.http.cors_origins == origins
    assert (
        build(from_flags(listen__http__cors_origins=", ".join(origins))).listen.http.cors_origins == origins
    )
    assert build(file, from_flags(listen__http__cors_origins="")).listen.http.cors_origins == ()
    config = build(file)
    again = from_text(tmp_path, config_sources.to_yaml(config, file), "again.yaml")
    assert build(again) == config


def test_lists_of_numbers_come_from_files_and_from_flags(tmp_path: Path) -> None:
    fusion = "kind: fusion, of: [a, b], method: linear"
    file = from_text(tmp_path, f"first_stage: {{indexes: {{f: {{{fusion}, weights: [1, 0.5]}}}}}}")
    config = build(file)
    assert config.first_stage.indexes["f"] == FusionConfig(of=("a", "b"), method="linear", weights=(1.0, 0.5))
    assert build(file, from_flags(first_stage__indexes__f__weights="1, 0.5")) == config
    again = from_text(tmp_path, config_sources.to_yaml(config, file), "again.yaml")
    assert build(again) == config
    with pytest.raises(ConfigError, match=r"f\.weights: '1,x' is not allowed; it must be a list of numbers"):
        build(file, from_flags(first_stage__indexes__f__weights="1,x"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1], "listen.http.cors_origins: [1] is not allowed; it must be a list of texts"),
        (5, "listen.http.cors_origins: 5 is not allowed; it must be a list of texts"),
        ("a.example", "must be origins such as https://search.example, or *"),
        ("https://a.example/page", "must be origins such as https://search.example, or *"),
    ],
)
def test_a_list_that_is_none_is_refused(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(from_flags(listen__http__cors_origins=value))
    assert message in str(caught.value)


def test_names_of_models_replace_those_that_stand_by_default(tmp_path: Path) -> None:
    assert "rerank-*" in build().listen.http.models
    file = from_text(tmp_path, 'listen: {http: {models: {"gte-v1.5": minilm}}}')
    assert build(file).listen.http.models == {"gte-v1.5": "minilm"}
