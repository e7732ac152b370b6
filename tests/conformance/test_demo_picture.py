"""The picture of the demo in the README shows what the demo prints."""

from __future__ import annotations

import pytest

from tools import demo_picture


def test_the_picture_is_what_the_demo_prints() -> None:
    assert demo_picture.PICTURE.read_text() == demo_picture.draw(demo_picture.record()), "make demo-picture"


def test_the_picture_ends_before_what_depends_on_the_machine() -> None:
    shown = "first\nA small sample fleet, and more\n\x1b[1mrow\x1b[0m\n\nWhat to try next:\n  a path\n"
    picture = demo_picture.draw(shown)
    assert "row" in picture
    assert "first" not in picture
    assert "path</text>" not in picture


def test_a_demo_that_fails_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with 1"):
        demo_picture.record()
