"""Pages of the HTTP port: probes, status, and Prometheus's metrics."""
