"""Serving the page's files. `page/` tests the page in a browser."""

from farrank_page.routes import PAGE
from support.http_endpoint import Opened


async def test_the_page_and_all_its_files_come_from_here_alone(endpoint: Opened) -> None:
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    assert "<style" not in page
    assert page.count("<script") == page.count('<script type="module" src="main.mjs">') == 1
    kinds = {".mjs": "javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    files = [path for path in PAGE.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == kinds.keys()
    for path in files:
        name = path.relative_to(PAGE).as_posix()
        async with endpoint.session.get("/" if name == "index.html" else f"/{name}") as answer:
            assert answer.status == 200
            # Browsers run no module with another type.
            assert kinds[path.suffix] in answer.content_type
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-cache"
            assert await answer.read() == path.read_bytes()
