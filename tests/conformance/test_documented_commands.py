"""Each command in a document has the verbs and options that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from devalloc.cli.main import cli
from tests.support.documented_commands import PAGES, commands, problem


def test_each_command_of_a_document_names_verbs_and_options_that_exist() -> None:
    every = [command for page in PAGES if page.name != "CHANGELOG.md" for command in commands(page)]
    assert len(every) > 400
    assert [f"{command}: {wrong}" for command in every if (wrong := problem(cli, command.words))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("    devalloc solve -f examples/whole-gpu | head\n", [None]),
        ("Run `devalloc drain node/a --dry-run` first.\n", [None]),
        ("$ devalloc slove -f FILE\n", ["there is no verb 'slove'"]),
        ("    devalloc solve --flie FILE\n", ["solve has no option --flie"]),
        ("    devalloc vm scale a --cpus 2\n", ["scale has no option --cpus"]),
        ("    devalloc get claims \\\n      --no-such  # all\n", ["get has no option --no-such"]),
        ("`devalloc VERB --help` shows more; `devalloc-node` is an image.\n", []),
        ("    sudo DEVALLOC_STORE=x devalloc up --nope\n", ["up has no option --nope"]),
    ],
)
def test_what_a_document_runs_is_read_wherever_it_stands(text: str, wrong: list[str | None], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [problem(cli, command.words) for command in commands(page)] == wrong
