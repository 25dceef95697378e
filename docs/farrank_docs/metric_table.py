"""The server's own metrics with the texts that Prometheus shows, from its instruments."""

from prometheus_client.metrics import MetricWrapperBase

from farrank_server.metrics import Metrics


def markdown() -> str:
    """One row for each instrument."""
    instruments = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    rows = ["| metric | type | labels | help |", "| --- | --- | --- | --- |"]
    for each in sorted(instruments, key=lambda each: each._name):
        name = each._name + ("_total" if each._type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in each._labelnames)
        text = each._documentation.replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| `{name}` | {each._type} | {labels} | {text} |")
    return "\n".join(rows)
