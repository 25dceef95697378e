"""The endpoint's own page: files of this package, each at its path, `index.html` at `/`."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from farrank_calls.content_coding import accepts_gzip, packed

PAGE = Path(__file__).parent / "static"

# A browser loads and runs only files of this server, and no other page may frame this one.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def page_routes() -> list[Route]:
    """One route for each file of the package. No other path leads to a file."""
    files = StaticFiles(directory=PAGE)
    names = sorted(path.relative_to(PAGE).as_posix() for path in PAGE.rglob("*") if path.is_file())

    def route(name: str) -> Route:
        async def get(request: Request) -> Response:
            return await get_file(files, name, request)

        return Route("/" if name == "index.html" else f"/{name}", get)

    return [route(name) for name in names]


async def get_file(
    files: StaticFiles, name: str, request: Request, security: Mapping[str, str] = SECURITY_HEADERS
) -> Response:
    """Answer with a file, compressed for callers that accept it."""
    response = await files.get_response(name, request.scope)
    accepted = ",".join(request.headers.getlist("accept-encoding"))
    if isinstance(response, FileResponse) and "range" not in request.headers and accepts_gzip(accepted):
        tag = response.headers["ETag"]
        headers = {each: response.headers[each] for each in ("Content-Type", "Last-Modified")}
        # A weak tag: it is that of the file, and these are other bytes.
        headers |= {"ETag": f"W/{tag}", "Content-Encoding": "gzip"}
        # The index of the documentation's search is large: compressing it would hold up the event loop.
        packed_file = await run_in_threadpool(_packed_file, Path(response.path), tag)
        response = Response(packed_file, headers=headers)
    response.headers.add_vary_header("Accept-Encoding")
    response.headers.update(security)
    # Browsers ask each time, and get 304 while the file is unchanged.
    response.headers["Cache-Control"] = "no-cache"
    return response


@lru_cache(maxsize=256)
def _packed_file(path: Path, tag: str) -> bytes:
    """Compress a file once for each tag, which changes with the file."""
    return packed(Path(path).read_bytes(), level=9)
