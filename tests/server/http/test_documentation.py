"""Serving the documentation's files. `docs/test_site.py` tests the files themselves."""

from functools import partial
from pathlib import Path

import pytest
from yarl import URL

from farrank_page.documentation import documentation_routes
from support.http_endpoint import OpenEndpoint

FILES = {
    "index.html": "<p>start</p>",
    "how-to/calling.html": "<p>calling</p>",
    "how-to/calling.md": "# Calling",
    "llms.txt": "# Farrank",
    "_static/farrank.css": "body {}",
}


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose files a server has at /docs."""
    folder = tmp_path / "docs"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (tmp_path / "secret.txt").write_text("secret")
    routes = partial(documentation_routes, folder)
    monkeypatch.setattr("farrank_server.http.application.documentation_routes", routes)
    return folder


async def test_every_file_is_there_with_its_type_and_a_strict_policy(
    open_endpoint: OpenEndpoint, built: Path
) -> None:
    kinds = {".html": "text/html", ".md": "text/markdown", ".txt": "text/plain", ".css": "text/css"}
    async with open_endpoint() as endpoint:
        for name, text in {**FILES, "": FILES["index.html"]}.items():
            async with endpoint.session.get(f"/docs/{name}") as answer:
                assert (answer.status, await answer.text()) == (200, text)
                assert answer.content_type == kinds[Path(name or "index.html").suffix]
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'self'; ")
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Cache-Control"] == "no-cache"
        async with endpoint.session.get("/docs") as answer:
            assert (answer.url.path, await answer.text()) == ("/docs/", FILES["index.html"])


@pytest.mark.parametrize(
    "name", ["gone.html", "how-to", "how-to/", "../secret.txt", "%2e%2e/secret.txt", "//etc/passwd"]
)
async def test_no_other_path_leads_to_a_file(open_endpoint: OpenEndpoint, built: Path, name: str) -> None:
    async with open_endpoint() as endpoint:
        url = URL(f"{endpoint.listener.url}/docs/{name}", encoded=True)
        async with endpoint.session.get(url) as answer:
            assert answer.status == 404
            assert "secret" not in await answer.text()


async def test_a_server_without_the_pages_names_the_command_that_builds_them(
    open_endpoint: OpenEndpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    routes = partial(documentation_routes, tmp_path / "none")
    monkeypatch.setattr("farrank_server.http.application.documentation_routes", routes)
    async with open_endpoint() as endpoint, endpoint.session.get("/docs/") as answer:
        assert answer.status == 404
        assert "make docs" in await answer.text()
