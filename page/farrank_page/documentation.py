"""The documentation: the files that `make docs` builds into this package, below `/docs`."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from farrank_page.routes import SECURITY_HEADERS, get_file

BUILT = Path(__file__).parent / "docs"

# The theme's styles contain its icons.
_POLICY = SECURITY_HEADERS["Content-Security-Policy"] + "; img-src 'self' data:"
_HEADERS = {**SECURITY_HEADERS, "Content-Security-Policy": _POLICY}

_NOT_BUILT = (
    "The documentation is not built here. Run `make docs` in the checkout, then start the server again.\n"
)


def documentation_routes(folder: Path = BUILT) -> list[Route]:
    """The start page at `/docs/`, and every file that the folder has now. No other path leads to a file."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    files = StaticFiles(directory=folder, check_dir=False)

    async def start(request: Request) -> Response:
        return RedirectResponse("docs/", headers=SECURITY_HEADERS)

    async def get(request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        if name in names:
            return await get_file(files, name, request, _HEADERS)
        text = "The documentation has no such page.\n" if names else _NOT_BUILT
        return PlainTextResponse(text, 404, SECURITY_HEADERS)

    return [Route("/docs", start), Route("/docs/{name:path}", get)]
