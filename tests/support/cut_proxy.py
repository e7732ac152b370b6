"""A way to a server that can be cut: connections are passed on byte by byte, while it is up."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CutProxy:
    """Listens on loopback. Safe for threads."""

    def __init__(self, port: int) -> None:
        """``port``: of the server, on loopback too."""
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._up = True
        self._left: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *, up: bool = True) -> None:
        """Cut all connections; ``up``: whether there can be new ones."""
        with self._lock:
            self._up = up
            for sock in self._open:
                _end(sock)
            self._open.clear()

    def cut_after(self, count: int | None) -> None:
        """Cut a connection when the server has sent so many bytes more over all of them; None: do not."""
        with self._lock:
            self._left = count

    def close(self) -> None:
        self._listener.close()
        self.cut(up=False)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                client.close()
                continue
            with self._lock:
                if not self._up:
                    client.close()
                    server.close()
                    continue
                self._open += [client, server]
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, by_server: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                end = False
                if by_server:
                    with self._lock:
                        if self._left is not None:
                            data, end = data[: self._left], len(data) >= self._left
                            self._left = None if end else self._left - len(data)
                target.sendall(data)
                if end:
                    break
        _end(source)
        _end(target)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
