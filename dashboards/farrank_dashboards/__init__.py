"""Grafana's dashboards as JSON in dashboards/grafana/, written from YAML in dashboards/definitions/."""
