"""A TCP proxy that can be cut, slowed down, or made to hold back data.

What is held arrives when it is let go, even if its sender has given up and is gone by then: a request that was
on its way for very long.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_LINGER_SECONDS = 2.0
"""How long the server has for what it was sent late, before it sees that the client is gone."""


class FaultyProxy:
    """Listens on loopback. Safe for threads."""

    def __init__(self, port: int) -> None:
        """``port``: of the server, on loopback too."""
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.delay = 0.0
        """Seconds that whatever is sent to the server is on its way."""
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._up = True
        self._left: int | None = None
        self._flowing = threading.Event()
        self._flowing.set()
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

    def hold(self) -> None:
        """Pass nothing more to the server."""
        self._flowing.clear()

    def let_go(self) -> None:
        """Pass on what was held, and what comes."""
        self._flowing.set()

    def close(self) -> None:
        self._listener.close()
        self.cut(up=False)
        self.let_go()

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
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pass, args=(server, client, True), daemon=True)
        back.start()
        self._pass(client, server, False)
        back.join()
        with self._lock:
            self._open = [sock for sock in self._open if sock not in (client, server)]
        client.close()
        server.close()

    def _pass(self, source: socket.socket, target: socket.socket, by_server: bool) -> None:
        was_held = False
        with suppress(OSError):
            while data := source.recv(1 << 16):
                end = False
                if by_server:
                    with self._lock:
                        if self._left is not None:
                            data, end = data[: self._left], len(data) >= self._left
                            self._left = None if end else self._left - len(data)
                else:
                    time.sleep(self.delay)
                    was_held |= not self._flowing.is_set()
                    self._flowing.wait()
                target.sendall(data)
                if end:
                    break
        if was_held:
            time.sleep(_LINGER_SECONDS)
        _end(source)
        _end(target)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
