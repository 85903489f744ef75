"""Writes the dashboard where it is committed."""

from tracekit.dashboards.grafana import FILE, dashboard

FILE.write_text(dashboard(), encoding="utf-8")
