"""The dashboards, recording rules and alerts, as data: deploy/observability and the chart have what is written from here."""
