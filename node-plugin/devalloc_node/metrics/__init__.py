"""Prometheus metrics of the node plugin."""
