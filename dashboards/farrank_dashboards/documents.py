"""Long documents: how many chunks they have, what is cut off, and where the deciding passage stands."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, number, spread
from farrank_dashboards.queries import RANKERS, Query, increase, mean, per_second, percentiles, share

CHUNKS = "farrank_document_chunks"
DECIDING = "farrank_deciding_chunk_number"
CUT = "farrank_cut_tokens_total"


def documents() -> Dashboard:
    """Show whether reading long documents whole changes the answers, and what is not read."""
    return framed(
        "farrank-documents",
        "Long documents",
        "How long are the documents, is anything of them not read, and would their beginnings have done?",
        Section("The deciding chunk", _deciding()),
        Section("Chunks", _chunks()),
        Section("Tokens cut", _cut()),
    )


def _later(*by: str) -> str:
    first = per_second(f"{DECIDING}_bucket", *by, where=f'{RANKERS}, le="1.0"')
    return f"1 - {share(first, per_second(f'{DECIDING}_count', *by))}"


def _deciding() -> tuple[Panel, ...]:
    return (
        number(
            "Decided beyond the first chunk",
            "Share of documents whose best passage a server that reads only the beginning would have missed.",
            "percentunit",
            Query(_later(), "later"),
            width=8,
        ),
        number(
            "Mean deciding chunk",
            "Which chunk decided, counted from 1.",
            "none",
            Query(mean(DECIDING), "number"),
            width=8,
        ),
        number(
            "Documents scored",
            "Documents of answered calls.",
            "cps",
            Query(per_second(f"{DECIDING}_count"), "documents"),
            width=8,
        ),
        lines(
            "Decided beyond the first chunk, by ranker",
            "FirstP reads one chunk and stays at 0.",
            "percentunit",
            Query(_later("ranker"), "{{ranker}}"),
            maximum=1,
        ),
        spread(
            "Position of the deciding chunk",
            "How many documents were decided by which chunk, counted from 1.",
            "none",
            DECIDING,
        ),
        lines(
            "Deciding chunk",
            "Where the 99th percentile is near that of the chunks, evidence stands at the very end: "
            "what lies beyond max_document_tokens may matter, too.",
            "none",
            *percentiles(DECIDING),
            width=24,
        ),
    )


def _chunks() -> tuple[Panel, ...]:
    return (
        lines("Chunks of a document", "How long the documents are, in chunks.", "none", *percentiles(CHUNKS)),
        spread("Chunks of a document, spread", "How many documents had how many chunks.", "none", CHUNKS),
        lines(
            "Mean chunks by ranker",
            "Rankers differ in their windows: the same document has more chunks in smaller ones.",
            "none",
            Query(mean(CHUNKS, "ranker"), "{{ranker}}"),
            width=24,
        ),
    )


def _cut() -> tuple[Panel, ...]:
    return (
        lines(
            "Tokens not read, by side",
            "Beyond max_query_tokens, max_document_tokens or a call's max_chunks. Each answer says so, too.",
            "short",
            Query(per_second(CUT, "side"), "{{side}}"),
            width=8,
            stacked=True,
        ),
        lines(
            "Tokens not read per document",
            "Mean over the documents of answered calls. Not 0: raise rankers.NAME.max_document_tokens, "
            "if the time for it is there.",
            "none",
            Query(
                share(
                    per_second(CUT, "ranker", where=f'{RANKERS}, side="document"'),
                    per_second(f"{CHUNKS}_count", "ranker"),
                ),
                "{{ranker}}",
            ),
            width=8,
        ),
        lines(
            "Tokens not read in this time range",
            "By ranker and side, since the beginning of the time range that is shown.",
            "short",
            Query(increase(CUT, "ranker", "side"), "{{ranker}}, {{side}}"),
            width=8,
        ),
    )
