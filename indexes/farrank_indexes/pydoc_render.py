"""Render the reference documentation of this Python interpreter; a script.

`pydoc_corpus` runs it in a separate process and reads JSON lines `[doc_id, text]` from it. It imports every
module of the standard library, and some of them open windows or change global state, which must not happen in
the caller's process. The script uses the standard library only; nothing imports it.
"""

import importlib
import json
import os
import pkgutil
import pydoc
import re
import site
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any
from unittest import mock

# Jokes, demos, tests and installers, which readers do not look up.
_SKIPPED = {"antigravity", "this", "idlelib", "turtledemo", "test", "lib2to3", "ensurepip", "pydoc_data"}
# Packages of many near-identical modules (a hundred codecs, for example), which would crowd out the rest.
_NOT_WALKED = {"encodings", "distutils", "tkinter", "ctypes.macholib"}
# pydoc shortens long values in the middle, so an address may contain dots.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F.]+|, handle [0-9a-f.]+")
# The path of the module's file, and in the text about `sys` the paths of all loaded modules.
_FILES = re.compile(r"\n\nFILE\n    [^\n]*|\n    modules = \{[^\n]*")


def modules() -> Iterator[tuple[str, types.ModuleType]]:
    """Yield every public module that can be imported here, each followed by its submodules."""
    for name in sorted(sys.stdlib_module_names - _SKIPPED):
        if not name.startswith("_") and (module := _import(name)) is not None:
            yield name, module
            yield from submodules(name, module)


def submodules(package_name: str, package: types.ModuleType) -> Iterator[tuple[str, types.ModuleType]]:
    """Yield a package's public, documented submodules that offer something the package does not.

    All of `asyncio.locks` is also in `asyncio`, so it gets no document; `http.client` gets one.
    """
    if package_name in _NOT_WALKED:
        return
    for info in sorted(pkgutil.iter_modules(getattr(package, "__path__", [])), key=lambda found: found.name):
        if info.name.startswith("_") or info.name in ("test", "tests"):
            continue
        name = f"{package_name}.{info.name}"
        module = _import(name)
        if module is None:
            continue
        documented = bool(module.__doc__) or hasattr(module, "__all__")
        if documented and any(getattr(package, key, None) is not value for key, value in _offered(module)):
            yield name, module
        yield from submodules(name, module)


def _import(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit):
        return None  # for another platform, or its C library was missing when Python was built


def _offered(module: types.ModuleType) -> list[tuple[str, object]]:
    if hasattr(module, "__all__"):
        return [(name, getattr(module, name, None)) for name in module.__all__]
    own = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    return [(name, value) for name, value in own if getattr(value, "__module__", "") == module.__name__]


def render(module: types.ModuleType) -> str:
    """Render as `help()` does, without the parts that differ between runs and machines."""
    nowhere: dict[str, Any] = {"executable": "<python>", "path_importer_cache": {}}
    nowhere |= {name: f"<{name}>" for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix")}
    nowhere |= {name: [] for name in ("argv", "orig_argv", "path")}
    with (
        # Replace these before rendering: pydoc cuts long values and would leave half a path.
        mock.patch.multiple(sys, **nowhere),
        mock.patch.multiple(site, PREFIXES=[], USER_SITE=None, USER_BASE=None),
    ):
        text = pydoc.plain(pydoc.render_doc(module))
    text = _FILES.sub("", text)
    text = _ADDRESS.sub("", text)
    for path, name in _places():
        text = text.replace(path, name)
    return text


def _places() -> list[tuple[str, str]]:
    paths = {"<stdlib>": sysconfig.get_path("stdlib"), "<python>": sys.executable, "<script>": sys.argv[0]}
    paths |= {"<prefix>": sys.prefix, "<base prefix>": sys.base_prefix, "<home>": os.path.expanduser("~")}
    spelled = {(place, name) for name, path in paths.items() for place in (path, os.path.realpath(path))}
    # Put the longest first, because a prefix is part of the others. A path as short as /usr reveals nothing.
    return sorted((pair for pair in spelled if len(pair[0]) > 4), key=lambda pair: (-len(pair[0]), pair))


def main() -> None:
    """Write one JSON line per document."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of imported modules is not a document
    os.environ.clear()  # the text about `os` shows it
    warnings.simplefilter("ignore")
    for name, module in modules():
        print(json.dumps([name, render(module)]), file=out)
    for topic in sorted(topics):
        print(json.dumps([f"topic:{topic}", topics[topic]]), file=out)
    out.close()
    os._exit(0)  # some modules start threads or register exit handlers


if __name__ == "__main__":
    main()
