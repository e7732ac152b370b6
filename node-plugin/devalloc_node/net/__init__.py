"""HTTP, WebSockets and accepting connections, for peers that are not trusted."""
