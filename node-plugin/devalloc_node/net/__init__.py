"""HTTP, WebSockets, accepting connections and unix sockets, for peers that are not trusted."""
