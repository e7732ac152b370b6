"""The node plugin in a test host (``tests/machine/inside/plugin.py``), asked from outside by the host's shell."""

from __future__ import annotations

import json
import shlex
from typing import Any

from tests.support.guest import Guest

SCRIPT = "/project/tests/machine/inside/plugin.py"
PIPES = "/run/plugin"
LOG = "/tmp/plugin.log"


class PluginRefused(Exception):
    """The plugin raised a NodeError."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['message']}")
        self.code: str = answer["error"]
        self.message: str = answer["message"]
        self.retryable: bool = answer["retryable"]
        self.denied: bool = answer["denied"]
        self.calls: list[str] = answer["calls"]
        """What it had changed, or tried to."""


class InsidePlugin:
    """A running plugin. ``calls``, ``seconds``: what the last thing that was asked for changed, and took."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.calls: list[str] = []
        self.seconds = 0.0

    @classmethod
    def of(cls, guest: Guest) -> InsidePlugin:
        """The one that runs, or a new one, which has not recovered yet."""
        plugin = cls(guest)
        if guest.run(f"kill -0 $(cat {PIPES}/pid)").status:
            plugin.start()
        return plugin

    def start(self) -> None:
        """In place of the one before."""
        self.kill()
        # The first side makes the pipe, and opening it waits for the other side.
        self._guest.check(f"mkdir -p {PIPES}; for p in asked told; do [ -p {PIPES}/$p ] || mkfifo {PIPES}/$p; done")
        self._guest.check(f"setsid python3 {SCRIPT} </dev/null >{LOG} 2>&1 & echo $! > {PIPES}/pid")

    def ask(self, do: str, *, wait: float = 300, **arguments: Any) -> dict[str, Any]:
        """Raises PluginRefused; AssertionError where the plugin broke."""
        request = shlex.quote(json.dumps({"do": do, **arguments}))
        status, text = self._guest.run(
            f"timeout {wait} sh -c 'echo \"$1\" > {PIPES}/asked; cat {PIPES}/told' ask {request}", seconds=wait + 10
        )
        if status or not text:
            raise AssertionError(f"{do}: the plugin does not answer:\n{self._guest.run(f'tail -n 40 {LOG}').output}")
        answer: dict[str, Any] = json.loads(text)
        self.calls, self.seconds = answer.pop("calls", []), answer.pop("seconds", 0.0)
        if "broken" in answer:
            raise AssertionError(f"{do}: {answer['broken']}")
        if "error" in answer:
            raise PluginRefused({**answer, "calls": self.calls})
        return answer

    def kill(self) -> None:
        """kill -9; it is no error that there is none."""
        self._guest.run(f"kill -9 $(cat {PIPES}/pid); rm {PIPES}/pid")
