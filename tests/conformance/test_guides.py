"""What the guides show is true: Python snippets run, in order, with the output shown, and so do the files of the
library guide; manifests are valid."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import fast_yaml
from tests.support.cli_shell import Shell
from tests.support.repository import REPO

_SNIPPET = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


def test_the_files_of_the_library_guide_run_as_they_are(tmp_path: Path) -> None:
    """Each in a fresh interpreter; the tests with the conftest that the guide shows."""
    blocks = _FILE.findall((REPO / "docs/library.md").read_text())
    names = [
        "conftest.py" if "pytest_plugins" in block else f"{'test' if 'def test_' in block else 'program'}_{number}.py"
        for number, block in enumerate(blocks)
    ]
    assert {name.partition("_")[0] for name in names} == {"program", "conftest.py", "test"}
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    for name, block in zip(names, blocks, strict=True):
        (tmp_path / name).write_text(block)
    programs = [[name] for name in names if name.startswith("program")]
    for arguments in [*programs, ["-m", "pytest", "-q"]]:
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr


OURS = ("devmgmtproto.k8s.io/", "devalloc.io/", "resource.k8s.io/")
PAGES = [
    *(path for path in sorted((REPO / "docs").rglob("*.md")) if "development" not in path.parts),
    *sorted((REPO / "examples").glob("*/README.md")),
]
_MANIFESTS = re.compile(r"^( *)```yaml\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """(where it stands, manifest) of each whole manifest of our kinds in a page."""
    whole = []
    for page in PAGES:
        text = page.read_text()
        for match in _MANIFESTS.finditer(text):
            where = f"{page.relative_to(REPO)}:{text.count(chr(10), 0, match.start()) + 1}"
            for one in fast_yaml.load_all(textwrap.dedent(match[2])):
                is_whole = isinstance(one, dict) and one.keys() >= {"apiVersion", "kind", "metadata"}
                if is_whole and one["apiVersion"].startswith(OURS):
                    whole.append((where, one))
    return whole


@pytest.mark.parametrize(("where", "manifest"), manifests(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_manifest_of_a_page_is_valid(where: str, manifest: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump(manifest))
    validated = Shell(tmp_path / "store.db")("validate", "-f", file)
    assert (validated.code, validated.out) == (0, "1 document, valid\n"), where


def test_manifests_of_all_our_groups_are_among_them() -> None:
    groups = {one["apiVersion"].partition("/")[0] for _, one in manifests()}
    assert {f"{group}/" for group in groups} == {*OURS}
