"""The configuration of the log and of traces."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from farrank_settings.checked import CheckedConfig, between, must


def _is_collector(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # Reading `port` raises ValueError for an invalid port.
        named = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and " " not in text
    return bool(named) and is_plain and not (parts.query or parts.fragment)


@dataclass(frozen=True, slots=True)
class LoggingConfig(CheckedConfig):
    """The log on standard error: as lines for people, or as JSON objects.

    Each call that fails has a line; of the calls that succeed, the share `ok_sample` (0 to 1) has one.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    ok_sample: float = between(0, 1, 0.01)


@dataclass(frozen=True, slots=True)
class TracingConfig(CheckedConfig):
    """Traces of calls are sent to the OTLP collector at `endpoint`, over HTTP; None traces nothing.

    The share `sample_ratio` (0 to 1) of calls is traced. A caller that sends a trace has decided for its
    calls; without `follow_callers`, only the share `sample_ratio` of the calls that it samples is traced.
    """

    endpoint: str | None = must(
        None, _is_collector, "a URL such as http://127.0.0.1:4318; without a path, /v1/traces is taken"
    )
    sample_ratio: float = between(0, 1, 0.01)
    follow_callers: bool = True

    @property
    def url(self) -> str | None:
        """The URL to which spans are sent."""
        if self.endpoint is None or urlsplit(self.endpoint).path.strip("/"):
            return self.endpoint
        return f"{self.endpoint.rstrip('/')}/v1/traces"
