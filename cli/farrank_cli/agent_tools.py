"""The tools that an agent gets: search, rerank, and reading a part of a document."""

from collections.abc import Awaitable
from importlib.metadata import version
from typing import Annotated, TypeVar

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from farrank_client import AsyncClient, Document, FarrankError, Ranking, ScoreScale

# A few paragraphs: an agent that needs more reads on with `read_passage`.
CONTEXT_TOKENS = 1500
# About 5,000 tokens, so that no document fills an agent's context.
PASSAGE_CHARACTERS = 20_000

INSTRUCTIONS = (
    "Search and read long documents. `search_and_rerank` returns the evidence: sentences with document and "
    "offsets. Cite these. To see the text around a sentence, call `read_passage` with its document, start "
    "and end."
)

Answer = TypeVar("Answer")


class Evidence(BaseModel):
    """Sentences of a document, and their characters, counted from 0; `end` is one past the last."""

    document: str
    start: int
    end: int
    score: float
    text: str


class FoundDocument(BaseModel):
    """A document of a ranking. `score` is between 0 and 1. `unread_characters` stand at its end."""

    document: str
    score: float
    characters: int
    unread_characters: int


class Found(BaseModel):
    """Documents, best first, and the evidence of all of them within the budget of tokens."""

    index: str
    documents: list[FoundDocument]
    evidence: list[Evidence]


class GivenDocument(BaseModel):
    """A document to rank: an id, unique in the call, and its whole text."""

    id: str
    text: str


class ReadPassage(BaseModel):
    """A part of a document. `next_start` is where to read on, null at the document's end."""

    document: str
    start: int
    end: int
    characters: int
    next_start: int | None
    text: str


class SearchedIndex(BaseModel):
    """An index that can be searched."""

    index: str
    documents: int
    first_stage: str


Query = Annotated[str, Field(description="The question, in natural language.")]
Index = Annotated[str, Field(description="The index, from list_indexes. Empty: the server's only one.")]
Top = Annotated[int, Field(ge=1, le=100, description="The number of best documents to return.")]
Tokens = Annotated[int | None, Field(ge=1, le=65_536, description="Tokens of evidence. Null: the usual.")]
Candidates = Annotated[int | None, Field(ge=1, description="Candidates to rerank. Null: the index's usual.")]


def agent_server(client: AsyncClient, ranker: str | None, context_tokens: int) -> MCPServer:
    """Make a server of the tools over a client of Farrank. It only reads."""
    server: MCPServer = MCPServer(
        "farrank", version=version("farrank"), instructions=INSTRUCTIONS, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    options = {"ranker": ranker, "score_scale": ScoreScale.SIGMOID}

    @server.tool(annotations=reads)
    async def list_indexes() -> list[SearchedIndex]:
        """List the indexes that can be searched."""
        catalog = await _answered(client.rankers())
        return [
            SearchedIndex(index=each.name, documents=each.documents, first_stage=each.first_stage)
            for each in catalog.indexes
        ]

    @server.tool(annotations=reads)
    async def search_and_rerank(
        query: Query, index: Index = "", top_n: Top = 10, k: Candidates = None, tokens: Tokens = None
    ) -> Found:
        """Search an index of long documents, read the candidates whole, and return the evidence."""
        ranking = await _answered(
            client.search_and_rerank(
                query,
                index=index or None,
                k=k,
                top_n=top_n,
                context_tokens=tokens or context_tokens,
                **options,  # type: ignore[arg-type]
            )
        )
        return _found(ranking)

    @server.tool(annotations=reads)
    async def rerank(
        query: Query, documents: list[GivenDocument], top_n: Top = 10, tokens: Tokens = None
    ) -> Found:
        """Rank documents that you have by a question, read whole, and return the evidence."""
        ranking = await _answered(
            client.rerank(
                query,
                [(each.id, each.text) for each in documents],
                top_n=top_n,
                context_tokens=tokens or context_tokens,
                **options,  # type: ignore[arg-type]
            )
        )
        return _found(ranking)

    @server.tool(annotations=reads)
    async def read_passage(
        document: Annotated[str, Field(description="The document's id, from search_and_rerank.")],
        index: Index = "",
        start: Annotated[int, Field(ge=0, description="The first character.")] = 0,
        end: Annotated[int | None, Field(ge=1, description="One past the last character.")] = None,
    ) -> ReadPassage:
        """Read a part of a document of an index: at most 20,000 characters a call."""
        name = index or await _only_index(client)
        # The contract returns texts with a ranking: one chunk is scored, for any query.
        ranking = await _answered(
            client.rerank(
                "text",
                [Document(document, index=name)],
                max_chunks=1,
                return_texts=True,
                ranker=ranker,
            )
        )
        text = ranking.results[0].text or ""
        if start > len(text):
            raise ToolError(f"start: is {start}; the document has {len(text)} characters")
        stop = min(len(text), start + PASSAGE_CHARACTERS, len(text) if end is None else end)
        if stop < start:
            raise ToolError(f"end: is {end}; it must be at least start, {start}")
        return ReadPassage(
            document=document,
            start=start,
            end=stop,
            characters=len(text),
            next_start=stop if stop < len(text) else None,
            text=text[start:stop],
        )

    return server


async def _answered(call: Awaitable[Answer]) -> Answer:
    """Await a call of Farrank. Raises: ToolError with the server's message, which the model reads."""
    try:
        return await call
    except FarrankError as error:
        raise ToolError(f"{' '.join(error.message.split())} [{error.code.name}]") from error


async def _only_index(client: AsyncClient) -> str:
    indexes = (await _answered(client.rankers())).indexes
    if len(indexes) != 1:
        names = ", ".join(each.name for each in indexes) or "none"
        raise ToolError(f"index: is empty; the server has {names}")
    return indexes[0].name


def _found(ranking: Ranking) -> Found:
    return Found(
        index=ranking.index or "",
        documents=[
            FoundDocument(
                document=each.id,
                score=each.score,
                characters=each.characters,
                unread_characters=each.characters_cut,
            )
            for each in ranking.results
        ],
        evidence=[
            Evidence(document=each.id, start=each.start, end=each.end, score=each.score, text=each.text)
            for each in ranking.context
        ],
    )
