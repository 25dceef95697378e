"""Grafana's dashboards as code: one file a dashboard, written to dashboards/grafana/ by `python -m`."""
