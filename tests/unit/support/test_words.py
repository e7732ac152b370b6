"""``make lint`` refuses words of the list, wherever they stand, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import words
from tools.words import Words

LIST = words.read_words()


def complaints(text: str, name: str = "module.py") -> list[str]:
    return words.complaints(Path(name), text, LIST)


@pytest.mark.parametrize(
    "code",
    [
        "found = find()",
        "def told(): ...",
        "class Bunch: ...",
        "def search(*, known): ...",
        "self.kept = 1",
        "for asked in requests: ...",
        "try: ...\nexcept OSError as mine: ...",
        "match value:\n    case {'a': found}: ...",
        "class Request:\n    _told: int = 0",
        "def add_bunch(): ...",
        "class NodeYard: ...",
    ],
)
def test_a_name_of_the_list_is_refused_however_it_is_bound(code: str) -> None:
    assert len(complaints(code)) == 1


@pytest.mark.parametrize(
    "code", ["refusal = find()", "print(found)", "is_known = True", "class Foundation: ...", "import told"]
)
def test_other_names_are_not(code: str) -> None:
    """Names that somebody else chose are only used."""
    assert complaints(code) == []


def test_a_module_may_not_have_such_a_name_either() -> None:
    assert complaints("", "solver/bunch.py") == [f"solver/bunch.py:1: bunch: {LIST.parts['bunch']}"]


@pytest.mark.parametrize(
    "text",
    ['"""It is told when that changes."""', "# whoever asks", "raise ValueError(f\"'{text}' is no quantity\")"],
)
def test_prose_of_code_is_read(text: str) -> None:
    assert len(complaints(text)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "def test_a_refusal_is_told(): ...",
        "class TestNobodyWaits: ...",
        "def somebody_writes(): ...",
        "async def test_whoever_asks_is_heard(): ...",
        "def test_it(are_waiting_for_whom): ...",
        "def test_an_amount_that_is_no_quantity_is_refused(): ...",
        "def test_a_peer_is_asked_ever_more_seldom(): ...",
    ],
)
def test_names_of_tests_are_read(code: str) -> None:
    assert len(complaints(code, "tests/unit/test_module.py")) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""Nobody waits."""',
        "# somebody else writes",
        'assert value == 1, "nobody knows"',
        'pytest.param(1, id="whoever asks")',
    ],
)
def test_prose_of_tests_is_read_too(text: str) -> None:
    assert len(complaints(text, "tests/unit/test_module.py")) == 1


def test_a_string_without_a_space_is_data() -> None:
    assert complaints('refused("nobody", "default/nobody")', "tests/unit/test_module.py") == []


def test_a_document_is_refused_by_its_line() -> None:
    (line,) = complaints("# Title\n\nThe user is told.\n", "docs/page.md")
    assert line.startswith("docs/page.md:3: is told: ")


def test_the_command_fails_for_one_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.md").write_text("Whoever reads this.\n")
    assert words.main([str(tmp_path)]) == 1
    assert f"{tmp_path}/page.md:1: Whoever" in capsys.readouterr().out
    (tmp_path / "page.md").write_text("Anyone who reads this.\n")
    assert words.main([str(tmp_path)]) == 0


def test_history_and_the_glossary_are_exempt() -> None:
    listed = {path.as_posix().removeprefix(f"{words.ROOT.as_posix()}/") for path in words.files([])}
    assert "docs/claims.md" in listed
    assert "devalloc/cli/main.py" in listed
    assert not {"CHANGELOG.md", "docs/development/glossary.md"} & listed


def test_each_word_has_something_to_write_instead() -> None:
    assert isinstance(LIST, Words)
    assert all([*LIST.names.values(), *LIST.parts.values(), *(instead for _, instead in LIST.prose)])


def test_a_name_that_data_has_is_allowed_in_its_file_only() -> None:
    assert LIST.allowed
    for path, names in LIST.allowed.items():
        assert (words.ROOT / path).exists(), path
        for name in names:
            assert complaints(f"{name} = 1\n", path) == []
            assert complaints(f"{name} = 1\n") != []
