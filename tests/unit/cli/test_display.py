"""What verbs that go on say: as it is, and only where there is something to say."""

from __future__ import annotations

import io
import sys

import pytest

from devalloc.cli.display import displayed, say_published
from devalloc.controller.publish import Published


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_words_of_others_are_shown_as_they_are(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    with displayed() as display:
        display.say("QEMU: [/dev/vfio/15] is [bold]busy")
        display.state("[/]")
    assert "QEMU: [/dev/vfio/15] is [bold]busy" in out.getvalue()


def test_pools_that_are_as_they_were_are_nothing_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with displayed() as display:
        say_published(display, Published())
        say_published(display, Published(updated=("node-a-0000-01-00",)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["pools: updated node-a-0000-01-00"]
