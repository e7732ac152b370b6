"""A request that is answered with an error."""

from __future__ import annotations


class RequestError(Exception):
    """``status`` and ``text``, which is the body as text/plain; ``detail`` is for the log."""

    def __init__(self, status: int, text: str, detail: str = "") -> None:
        super().__init__(f"{text}: {detail}" if detail else text)
        self.status = status
        self.text = text
        self.detail = detail
