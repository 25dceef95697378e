"""The application's options for Serve if HAProxy passes calls on."""

from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

from ray import serve

from farrank_scale import application
from farrank_server.config.schema import ServerConfig


@pytest.mark.parametrize("haproxy", [False, True])
def test_serve_refuses_a_router_with_haproxy_and_gets_none(
    haproxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    deployment = serve.deployment

    def remember(**options: Any) -> Any:
        asked.update(options)
        return deployment(**options)

    monkeypatch.setattr(serve, "deployment", remember)
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", str(int(haproxy)))
    application.application(ServerConfig(), application.Scale())
    assert ("request_router_config" in asked) is not haproxy
