"""Files for Prometheus and Grafana: alert rules, an example scrape configuration, a dashboard.

No service imports this package. The dashboard is JSON that `dashboard.py` writes from the tables in
`log_panels.py` and `service_panels.py`.
"""
