"""Whatever is done to the examples, the command answers in words: no traceback, and the undamaged ones still count."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from devalloc.api.manifests import load
from devalloc.cli.main import cli
from tests.support.manifest_mutations import mutated
from tests.support.repository import REPO

EXAMPLES = sorted(path for path in (REPO / "examples").iterdir() if path.is_dir() and path.name != "dra")
ROUNDS = 3


def damaged(example: Path, random: Random) -> list[dict[str, Any]]:
    """The documents of the example, two of them (or the only one) broken somewhere."""
    documents = [document.content for document in load([example]).documents]
    for i in random.sample(range(len(documents)), min(2, len(documents))):
        documents[i] = mutated(documents[i], random)
    return documents


def run(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Exit code and all output of a command, which must have ended as commands do."""
    result = CliRunner().invoke(cli, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "bug in devalloc" not in result.output
    return result.exit_code, result.output


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_verb_answers_in_words(example: Path, seed: int, tmp_path: Path) -> None:
    documents = damaged(example, Random(f"{example.name} {seed}"))
    text = "---\n".join(json.dumps(document) + "\n" for document in documents)
    store = ("--store", str(tmp_path / "store.db"))

    wrong = run("validate", "-f", "-", stdin=text)[0] == 2
    solved, _ = run("solve", "-f", "-", stdin=text)
    applied, output = run("apply", "-f", "-", *store, stdin=text)

    assert solved in (0, 2, 3)
    assert applied == 0 or wrong
    assert output.count(" created\n") >= len(documents) - 2
    for verb in (["get", "pools"], ["get", "claims", "-A", "-o", "wide"], ["solve", "-o", "wide"]):
        run(*verb, *store)
    for name in run("get", "claims,pools", "-A", "-o", "name", *store)[1].split():
        run("describe", name, *store)
