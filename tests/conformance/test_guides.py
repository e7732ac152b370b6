"""Every Python snippet of the guides runs, in order, and shows what it says it shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.support.repository import REPO

_SNIPPET = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDES = [path for path in sorted((REPO / "docs").glob("*.md")) if _SNIPPET.search(path.read_text())]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_the_snippets_of_a_guide_run_in_order_and_show_what_they_say(guide: Path) -> None:
    text = guide.read_text()
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner(verbose=False)
    output: list[str] = []
    for match in _SNIPPET.finditer(text):
        line = text.count("\n", 0, match.start(1))
        snippet = doctest.DocTestParser().get_doctest(match[1], names, guide.name, str(guide), line)
        runner.run(snippet, out=output.append, clear_globs=False)
        names = snippet.globs
    assert not output, "".join(output)


def test_the_library_guide_is_among_them() -> None:
    assert "library.md" in {guide.name for guide in GUIDES}
