"""What a terminal of 80 columns shows: lines end between words, and no column is cropped."""

from __future__ import annotations

import io
import sys

import click
import pytest

from devalloc.cli.layout import GAP, fit_columns, fit_lines, wrap, wrap_sentence
from devalloc.cli.render import output
from devalloc.cli.terminal import print_heading, print_line, print_note


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output and error, on a terminal of 80 columns. Not a fixture: pytest replaces both after it."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    return terminal


POOLS = ["NAME", "NODE", "DRIVER", "MODEL", "NUMA", "DEVICES", "AVAILABLE", "AGE"]
POOL = ["dgx-a-0000-07-00", "dgx-a", "gpu.devalloc.io", "A100 SXM4 40GB", "3", "15", "3", "12d"]
NIC = ["node-a-0000-5e-00", "node-a", "nic.devalloc.io", "Ethernet Controller E810-C for QSFP", "0", "3", "0", "12d"]


def test_a_table_that_does_not_fit_loses_what_others_can_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    output.print_table(POOLS, [POOL, NIC])
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["NAME", "NODE", "MODEL", "DEVICES", "AVAILABLE", "AGE"]
    assert lines[1].split()[-3:] == ["15", "3", "12d"]


def test_a_table_that_fits_has_all_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    output.print_table(POOLS[:6], [POOL[:6]])
    assert terminal.getvalue().splitlines()[0].split() == POOLS[:6]


def test_a_wide_table_keeps_all_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    output.print_table(POOLS, [NIC], wide=True)
    assert terminal.getvalue().splitlines()[0].split() == POOLS


def test_columns_without_content_go_first() -> None:
    headers, row = ["NAME", "NODE", "RESERVED BY", "DRIVER"], ["a" * 30, "b" * 20, "", "c" * 20]
    assert fit_columns(headers, [row], 80)[0] == [0, 1, 3]


def test_rows_of_many_devices_are_broken_before_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    devices = "dgx-a-0000-0f-00/mig-3g.20gb-0, mig-3g.20gb-1, dgx-a-0000-07-00/mig-3g.20gb-0"
    output.print_table(
        ["NAME", "STATE", "WANTS", "NODE", "DEVICES, OR WHY NOT", "AGE"],
        [["serve", "Allocated", "3 mig", "dgx-a", devices, "5m"]],
    )
    lines = terminal.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.strip().startswith(",")]
    assert sum("mig-3g.20gb-1," in line for line in lines) == 1


def test_columns_are_as_wide_as_their_longest_text_and_an_empty_one_takes_no_room() -> None:
    assert output.table_lines(["A", "", "B"], [["long", "", "x"]]) == [f"A   {GAP}{GAP}B", f"long{GAP}{GAP}x"]
    assert output.table_lines(["A", "B"], [["x", "y"]], [3]) == [f"A  {GAP}B", f"x  {GAP}y"]


@pytest.mark.parametrize("width", [1, 7, 24, 80])
def test_a_cell_keeps_all_its_characters(width: int) -> None:
    text = "impossible now: node-a-0000-08-00/vgpu-a2-4q-0, spec.claims[0].matchAttributes differ"
    lines = wrap(text, width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("say", [print_line, print_note, print_heading])
def test_sentences_end_between_words(monkeypatch: pytest.MonkeyPatch, say: object) -> None:
    terminal = on_terminal(monkeypatch)
    text = "A small sample fleet, to show more: two recorded machines, and two that were written by hand: look"
    say(text)  # type: ignore[operator]
    lines = click.unstyle(terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines) == text


def test_a_path_in_a_sentence_is_not_broken() -> None:
    path = "/var/lib/devalloc/" + "x" * 80
    assert wrap_sentence(f"there is no store at {path}; create one", 80) == [
        "there is no store at",
        path + ";",
        "create one",
    ]


def test_what_follows_a_name_stays_beside_it() -> None:
    lines = wrap_sentence("Message:   no node is large enough: node node-a has not enough memory", 40, hang=11)
    assert lines[1:] == [" " * 11 + line.strip() for line in lines[1:]]
    assert lines[1:]


def test_a_pipe_gets_long_lines_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("word " * 40)
    assert capsys.readouterr().out == "word " * 40 + "\n"


def test_lines_of_a_live_screen_are_shortened_before_a_column_goes() -> None:
    headers = ["CLAIM", "WANTS", "REASON", "MESSAGE"]
    shown, sizes = fit_lines(headers, [28, 40, 23, 300], 80)
    assert [headers[i] for i in shown] == ["CLAIM", "WANTS", "REASON"]
    assert sum(sizes) + 4 <= 80
    assert sizes[-1] == 23
    assert fit_lines(headers, [28, 40, 23, 300], 200) == ([0, 1, 2, 3], [28, 40, 23, 300])
