"""A measured figure of the README or of docs/ stands beside its report, its command or its publication."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Reports are sources, and decision records quote theirs.
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted(DOCS.rglob("*.md"))
        if page.relative_to(DOCS).parts[0] not in ("benchmarks", "decisions")
    ),
]

# Limits and defaults are whole seconds, MiB and bytes, and names in code; measurements have other forms.
FIGURE = re.compile(
    r"""(?<![\w.,/])(?:
      0?\.\d{3,} | \.\d\d | 1\.000                       # .58, 0.580
    | \d*\.\d+(?=\sof\s(?:the|its)\s)                   # 0.48 of the time
    | \d[\d,.]*\s?(?:µs|ms|[KM]B|(?:documents|pairs|tokens)(?:/s|\sa\ssecond))
    | \d[\d,]*\.\d+\s?(?:s|seconds|minutes|times|GB|points|%)
    | \d+\stimes\s(?:as|faster|slower)
    | \d+\s?%\sof\s(?:the\s)?(?:quality|questions)
    )(?!\w)""",
    re.VERBOSE,
)
# Constants of the code that have such a form: waits, the lowest bucket, and a burn rate of alerts.
CONSTANTS = {"0.1 s", "0.2 s", "0.25 s", "1.5 s", "1 ms", "14.4 times"}
SOURCE = re.compile(
    r"""benchmarks/(?:\d|gpu) | decisions/\d
    | python\s-m\sfarrank_ | farrank\sloadtest | make\s(?:demo|bench|experiment|reproduce|train-demo)
    | Tables?\s\d | model\scard                          # of a publication
    """,
    re.VERBOSE,
)


def unsourced(page: str) -> Iterator[tuple[str, str]]:
    """Yield each figure without a source in its block, the one before or the one after, with its heading."""
    page = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for section in re.split(r"^(?=#+ )", page, flags=re.MULTILINE):
        # A table belongs to the paragraph before it.
        blocks = re.split(r"\n\s*\n(?!\|)", section.strip())
        for place, block in enumerate(blocks):
            if any(map(SOURCE.search, blocks[max(place - 1, 0) : place + 2])):
                continue
            prose = re.sub(r"`[^`]*`|\]\(.*?\)", "", block)
            heading = blocks[0].partition("\n")[0]
            yield from ((heading, each) for each in FIGURE.findall(prose) if each not in CONSTANTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_measured_figure_stands_beside_its_source(page: Path) -> None:
    assert list(unsourced(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "figure",
    [
        "nDCG@10 is .580",
        "an MRR of 0.861",
        "in 0.48 of the time",
        "a search takes 40 ms",
        "1.7 KB a document",
        "3,900 documents/s",
        "10,000 tokens a second",
        "a start takes 7.5 s",
        "4.0 times as fast",
        "12 times faster",
        "it keeps 99% of the quality",
        "98.3% of the questions",
    ],
)
def test_a_figure_without_its_source_is_found(figure: str) -> None:
    report = "[Report](../benchmarks/2026-11-28-evidence.md)."
    page = f"# Speed\n\nOn two cores, {figure}.\n\nNothing else.\n\n{report}\n\n## More\n\nText.\n"
    found = list(unsourced(page))
    assert len(found) == 1
    assert found[0][0] == "# Speed"
    assert list(unsourced(page.replace("Nothing else.\n\n", ""))) == []
    assert (
        list(unsourced(page.replace("Nothing else.", f"| a | b |\n| - | - |\n| {figure} | {report} |"))) == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "Python 3.11 has a limit of 30 s, 2 MiB and 64 bytes.",
        "`--timeout-s 0.25` and `first_stage.weight: .580`",
        "```bash\nfarrank serve  # healthy in 7.5 s\n```",
        "It answers new calls for 1.5 s more.",
    ],
)
def test_limits_versions_and_code_are_not_measured_figures(text: str) -> None:
    assert list(unsourced(f"# Limits\n\n{text}\n")) == []
