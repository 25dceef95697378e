"""Grafana's dashboards, from definitions in YAML to JSON: dashboards/definitions/ to dashboards/grafana/."""
