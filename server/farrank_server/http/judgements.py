"""Serves judged questions of indexes at `/judgements.json`, by which the page measures rankings."""

from collections.abc import Collection, Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from farrank_server.access.callers import Caller
from farrank_server.config.schema import HttpConfig, JudgementsConfig
from farrank_server.http import connect
from farrank_server.http.calls import HttpCalls
from farrank_server.http.json_bodies import JSON, to_json
from farrank_settings.errors import ConfigError
from farrank_trec import Qrels, read_qrels, read_queries
from farrank_trec.errors import InputError

# The page loads all of them at once: some 2 MB for this number of short questions.
MAX_QUESTIONS = 10_000

_KEY = "listen.http.judgements"

# The JSON of each judged index, by its name.
JudgedSets = Mapping[str, bytes]


def routes(sets: JudgedSets, calls: HttpCalls) -> list[Route]:
    """The route of the judged questions. A caller gets those of the indexes that it may search."""

    def write(caller: Caller) -> Response:
        allowed = b",".join(its for index, its in sets.items() if caller.may_search(index))
        # Browsers ask each time: another key may see other sets.
        return Response(
            b'{"sets":[' + allowed + b"]}", headers={"Cache-Control": "no-cache"}, media_type=JSON
        )

    async def get(request: Request) -> Response:
        return await calls.describe(request, "Judgements", write, connect.refuse)

    return [Route("/judgements.json", get)]


def read_judgements(http: HttpConfig, indexes: Collection[str]) -> JudgedSets:
    """Read the questions and judgements of each index that is configured to have some.

    Questions without a judgement are left out. A grade below 0 counts as no judgement.
    Raises: ConfigError with every problem, one for each index: it is unknown, a file cannot be read or is
    malformed, questions are missing, or there are more than MAX_QUESTIONS.
    """
    if http.judgements and not (http.page and http.port is not None):
        off = "listen.http.port is none" if http.port is None else "listen.http.page is false"
        raise ConfigError(f"{_KEY}: is for the page, and {off}")
    sets: dict[str, bytes] = {}
    problems: list[str] = []
    for index, files in http.judgements.items():
        try:
            if index not in indexes:
                known = ", ".join(indexes) or "none"
                raise ConfigError(f"{_KEY}.{index}: no index {index!r} is configured; known are: {known}")
            sets[index] = to_json({"index": index, "questions": [*_questions(f"{_KEY}.{index}", files)]})
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return sets


def _questions(key: str, files: JudgementsConfig) -> Iterator[dict[str, object]]:
    """Yield the judged questions in the order of their file. Raises: ConfigError."""
    try:
        queries = read_queries(files.questions)
    except InputError as error:
        raise ConfigError(f"{key}.questions: {error}") from error
    grades = _grades(key, files, queries)
    judged = [query_id for query_id in queries if query_id in grades]
    if not judged:
        raise ConfigError(f"{key}.qrels: {files.qrels}: no question has a grade of 0 or more")
    if len(judged) > MAX_QUESTIONS:
        raise ConfigError(
            f"{key}.questions: {files.questions}: {len(judged):,} questions have judgements; the limit is "
            f"{MAX_QUESTIONS:,}"
        )
    for query_id in judged:
        yield {"id": query_id, "text": queries[query_id], "grades": grades[query_id]}


def _grades(key: str, files: JudgementsConfig, known: Collection[str]) -> Qrels:
    """Read the grades of 0 or more by question. Raises: ConfigError, also for an unknown question."""
    try:
        qrels = read_qrels(files.qrels)
    except InputError as error:
        raise ConfigError(f"{key}.qrels: {error}") from error
    if unknown := [query_id for query_id in qrels if query_id not in known]:
        raise ConfigError(
            f"{key}.qrels: {files.qrels}: judges documents for {unknown[0][:100]!r}, and "
            f"{files.questions} has no such question ({len(unknown):,} in all)"
        )
    kept = {
        query_id: {doc_id: grade for doc_id, grade in its.items() if grade >= 0}
        for query_id, its in qrels.items()
    }
    return {query_id: its for query_id, its in kept.items() if its}
