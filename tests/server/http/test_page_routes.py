"""Serving the page's files. `page/` tests the page in a browser."""

import gzip

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


async def test_files_are_compressed_for_browsers_that_accept_it(endpoint: Opened) -> None:
    content = (PAGE / "style/base.css").read_bytes()
    tags = []
    for accepted in ("gzip, deflate, br", "gzip;q=0"):
        asked = {"Accept-Encoding": accepted}
        async with endpoint.session.get("/style/base.css", headers=asked, auto_decompress=False) as answer:
            found = await answer.read()
            assert int(answer.headers["Content-Length"]) == len(found)
            assert answer.headers["Vary"] == "Accept-Encoding"
            assert answer.content_type == "text/css"
            tags.append(answer.headers["ETag"])
            if accepted == "gzip;q=0":
                assert (found, answer.headers.get("Content-Encoding")) == (content, None)
            else:
                assert answer.headers["Content-Encoding"] == "gzip"
                assert gzip.decompress(found) == content
                assert len(found) < len(content) / 2
        same = {**asked, "If-None-Match": tags[-1]}
        async with endpoint.session.get("/style/base.css", headers=same) as answer:
            assert answer.status == 304
            assert answer.headers["Vary"] == "Accept-Encoding"
    assert tags == [f"W/{tags[1]}", tags[1]]
    part = {"Accept-Encoding": "gzip", "Range": "bytes=5-9"}
    async with endpoint.session.get("/style/base.css", headers=part) as answer:
        assert (answer.status, await answer.read()) == (206, content[5:10])
