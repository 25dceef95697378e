"""The endpoint's own page: files of this package, each at its path, `index.html` at `/`."""

from functools import lru_cache, partial
from pathlib import Path

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
    return [Route("/" if name == "index.html" else f"/{name}", partial(_get, files, name)) for name in names]


async def _get(files: StaticFiles, name: str, request: Request) -> Response:
    response = await files.get_response(name, request.scope)
    accepted = ",".join(request.headers.getlist("accept-encoding"))
    if isinstance(response, FileResponse) and "range" not in request.headers and accepts_gzip(accepted):
        tag = response.headers["ETag"]
        headers = {each: response.headers[each] for each in ("Content-Type", "Last-Modified")}
        # A weak tag: it is that of the file, and these are other bytes.
        headers |= {"ETag": f"W/{tag}", "Content-Encoding": "gzip"}
        response = Response(_packed_file(Path(response.path), tag), headers=headers)
    response.headers.add_vary_header("Accept-Encoding")
    response.headers.update(SECURITY_HEADERS)
    # Browsers ask each time, and get 304 while the file is unchanged.
    response.headers["Cache-Control"] = "no-cache"
    return response


@lru_cache(maxsize=256)
def _packed_file(path: Path, tag: str) -> bytes:
    """Compress a file once for each tag, which changes with the file."""
    return packed(Path(path).read_bytes(), level=9)
