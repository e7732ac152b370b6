"""HTTP for clients that are not trusted: connections, requests and bodies are bounded. ``rate``: limits on rates."""
