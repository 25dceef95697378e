"""The Sphinx extension: it fills in generated parts, copies each page as Markdown, and writes `llms.txt`.

A page holds a generated part as an empty fenced block, ```{generated} NAME.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

GENERATED = {
    "configuration": "farrank_docs.configuration",
    "command-line": "farrank_docs.command_line",
    "metrics": "farrank_docs.metric_table",
    "http": "farrank_docs.http_operations",
    "contract": "farrank_docs.contract",
    "admin-contract": "farrank_docs.admin_contract",
    "python": "farrank_docs.python_names",
    "decisions": "farrank_docs.records",
    "reports": "farrank_docs.reports",
}

SECTIONS = {
    "tutorial": "Tutorial",
    "how-to": "How-to guides",
    "explanation": "Explanation",
    "reference": "Reference",
    "benchmarks": "Reports of measurements",
    "decisions": "Decision records",
}

SOURCES = Path(__file__).parents[1]

_OUT = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]*)\)")
_PART = re.compile(r"^```\{generated\} (\S+)\n```$", re.MULTILINE)
_TREE = re.compile(r"^```\{toctree\}\n.*?^```\n?", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension to the steps of a build."""
    app.connect("source-read", _fill_in)
    app.connect("build-finished", _write_copies)
    # The generated parts depend on code that Sphinx does not watch.
    app.connect(
        "env-get-outdated", lambda _app, env, *_: [page for page in env.found_docs if _is_made(env, page)]
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def expanded(path: Path) -> str:
    """Read a page. Generated parts take the places of their marks, and names of files those of links to them.

    Raises: ExtensionError if a part or a file does not exist.
    """
    text = _PART.sub(lambda found: _generate(found[1]), path.read_text(encoding="utf-8"))
    # Fenced blocks are code, in which this is no link.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(each if each.startswith("```") else _without_links_out(each, path) for each in parts)


def _without_links_out(text: str, path: Path) -> str:
    """Name the file or folder of the repository to which a link leads, because these pages do not have it."""

    def named(found: re.Match[str]) -> str:
        target = (path.parent / found[2].partition("#")[0]).resolve()
        if target.is_relative_to(SOURCES):
            return found[0]
        if not (target.is_relative_to(SOURCES.parent) and target.exists()):
            raise ExtensionError(f"{path}: {found[2]}: is no file of the repository")
        name = target.relative_to(SOURCES.parent).as_posix()
        return f"`{name}`" if name.endswith(found[1].strip("`")) else f"{found[1]} (`{name}`)"

    return _OUT.sub(named, text)


def _generate(name: str) -> str:
    if name not in GENERATED:
        raise ExtensionError(f"{{generated}} {name}: is not one of {', '.join(GENERATED)}")
    text: str = import_module(GENERATED[name]).markdown()
    return text


def _is_made(env: Any, page: str) -> bool:
    return _PART.search(Path(env.doc2path(page)).read_text(encoding="utf-8")) is not None


def _fill_in(app: Sphinx, page: str, content: list[str]) -> None:
    content[0] = expanded(Path(app.env.doc2path(page)))


def _write_copies(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    entries: dict[str, list[str]] = {folder: [] for folder in SECTIONS}
    for page in sorted(app.env.found_docs):
        text = _TREE.sub("", expanded(Path(app.env.doc2path(page))))
        copy = Path(app.outdir, f"{page}.md")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
        folder, _, name = page.partition("/")
        if folder in entries and name != "index":
            sentence = first_sentence(text)
            about = f": {sentence}" if sentence else ""
            entries[folder].append(f"- [{app.env.titles[page].astext()}]({page}.md){about}")
    Path(app.outdir, "llms.txt").write_text("\n".join(_llms(app, entries)), encoding="utf-8")


def _llms(app: Sphinx, entries: dict[str, list[str]]) -> Iterator[str]:
    """The lines of https://llmstxt.org: a title, a summary, and sections of links."""
    start = Path(app.env.doc2path("index")).read_text(encoding="utf-8")
    yield from (f"# {app.config.project}", "", f"> {first_sentence(start)}", "")
    for folder, title in SECTIONS.items():
        yield from (f"## {title}", "", *entries[folder], "")


def first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph, without links and line breaks."""
    body = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    body = re.sub(r"^(?:#.*|Status: (?:.+\n)+)$", "", body, flags=re.MULTILINE)
    paragraphs = (each.strip() for each in body.split("\n\n"))
    paragraph = next((each for each in paragraphs if each[:1] not in ("", "|", "-", "!")), "")
    plain = " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph).split())
    return re.split(r"(?<=[.:]) (?=[A-Z`])", plain, maxsplit=1)[0].rstrip(":")
