"""The exports of a configuration with `--export auto`."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from safetensors.torch import save_file

from farrank_cli import exporting
from farrank_cli.export_limits import ExportLimits
from farrank_rankers.errors import SourceError
from farrank_rankers.files.model_files import Location
from farrank_rankers.files.open import Overrides
from farrank_server.config.schema import RankerConfig, ServerConfig

LIMITS = ExportLimits()


def test_all_that_a_configuration_changes_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export without the ranker's instruction or prefix would answer another question."""
    asked: list[dict[str, Any]] = []

    def written_down(who: str, source: str, *rest: Any, **overrides: Any) -> str:
        asked.append({name: value for name, value in overrides.items() if value is not None})
        return "kept"

    monkeypatch.setattr(exporting, "exported_source", written_down)
    given: dict[str, Any] = {
        "family": "longp",
        "template": "{instruction}\nQuestion: {query}\nText: {document}\nRelevant?",
        "answers": ("true", "false"),
        "instruction": "find laws",
        "query_prefix": "query: ",
        "document_prefix": "passage: ",
        "truncate_dim": 8,
        "max_query_tokens": 9,
        "max_document_tokens": 90,
        "window": 50,
        "stride": 20,
        "download": True,
    }
    served = exporting.exported_rankers(
        ServerConfig(rankers={"mine": RankerConfig("model", **given)}), LIMITS
    )
    assert asked == [given]
    assert served.rankers == {"mine": RankerConfig("kept")}
    # A new override must be in the configuration, or in this list.
    assert get_type_hints(Overrides).keys() - given.keys() == {"revision", "pad_query_to"}


def test_static_embeddings_are_left_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}]'
    )
    save_file({"embedding.weight": torch.zeros(3, 2)}, tmp_path / "model.safetensors")
    config = ServerConfig(rankers={"mine": RankerConfig(str(tmp_path))})
    with caplog.at_level("INFO"):
        assert exporting.exported_rankers(config, LIMITS) == config
    assert "ranker mine is not exported: static embeddings are looked up" in caplog.text


def test_a_ranker_is_looked_for_under_its_own_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def noted(source: str, **how: Any) -> Location:
        asked.append(how)
        raise SourceError("not here")

    monkeypatch.setattr(exporting, "locate", noted)
    with pytest.raises(SourceError):
        exporting.exported_source("it", "org/model", LIMITS, "cpu", revision="v2", download=True)
    assert asked == [{"revision": "v2", "download": True}]
