"""`devalloc top`: the numbers of `devalloc get`, for people and for programs."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext, redirect_stdout
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from devalloc.cli.keys import Keys
from devalloc.cli.render.fleet import print_overview, summary_line
from devalloc.cli.render.pictures import counts_bar
from devalloc.cli.render.top_screen import TopScreen, screen_content
from devalloc.cli.verbs import top
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import DeviceCounts, build_overview
from devalloc.usage.overview.cache import CachedOverview, OverviewCache
from tests.support.cli_shell import Shell
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool
from tests.support.machine_allocator import machine_allocator
from tests.support.served_page import FixedStore

Object = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "devalloc.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(path)) as opened:
        broken = gpu_pool("c", 2, "n2")
        broken["spec"]["devices"][0]["attributes"] = [
            {"name": "devalloc.io/unavailable", "stringValue": "in use: qemu"}
        ]
        fill(opened, gpu_class(), gpu_pool("a", 2, "n1"), gpu_pool("b", 3, "n2"), broken)
        fill(opened, gpu_claim("one", 2), gpu_claim("big", 99), gpu_claim("two"))
        machine_allocator(opened).round()
        yield opened


def cells(line: str) -> list[str]:
    return line.split()


def test_numbers_are_those_of_get(devalloc: Shell, store: SQLiteStore, path: Path) -> None:
    report = devalloc("top", "-o", "json", "--store", path).json
    pools = devalloc("get", "pools", "-o", "json", "--store", path).json["items"]
    cards = {card["name"]: card["counts"] for node in report["nodes"] for card in node["cards"]}
    assert {name: counts["available"] for name, counts in cards.items()} == {
        pool["metadata"]["name"]: pool["status"]["availableDevices"] for pool in pools
    }
    assert report["counts"]["available"] == sum(pool["status"]["availableDevices"] for pool in pools)
    assert (report["counts"]["devices"], report["counts"]["inUse"], report["counts"]["unavailable"]) == (7, 3, 1)
    assert (report["pending"], report["allocated"], report["settled"]) == (1, 2, True)
    assert [claim["name"] for claim in report["claims"] if claim["pending"]] == ["big"]
    assert devalloc("top", "-o", "yaml", "--store", path).out.startswith("nodes:\n- name: n1\n")


def test_what_is_shown_of_it(devalloc: Shell, store: SQLiteStore, path: Path) -> None:
    summed, _, header, first, second, _, _, waiting = devalloc("top", "--once", "--store", path).out.splitlines()
    assert summed == (
        "2 nodes, 3 cards, 7 devices: 3 available, 3 in use, 1 unavailable, 0 excluded. "
        "Claims: 2 allocated, 1 pending. Machines: 0."
    )
    assert cells(header)[:3] == ["NODE", "CARDS", "DEVICES"]
    rows = {cells(line)[0]: list(map(int, cells(line)[1:6])) for line in (first, second)}
    assert {name: row[:2] for name, row in rows.items()} == {"n1": [1, 2], "n2": [2, 5]}
    assert sum(row[2] for row in rows.values()) == 3
    assert cells(waiting)[:4] == ["default/big", "99", "gpu", "NotEnoughDevices"]


def test_wide_says_who_has_what(devalloc: Shell, store: SQLiteStore, path: Path) -> None:
    wide = devalloc("top", "-o", "wide", "--store", path).out
    held = [line for line in wide.splitlines() if " held " in line]
    assert sorted(line.split()[-1] for line in held) == ["default/one", "default/one", "default/two"]
    (unavailable,) = [line for line in wide.splitlines() if "in use: qemu" in line]
    assert unavailable.split()[:2] == ["d0", "unavailable"]
    assert " free " not in wide


@pytest.mark.parametrize(
    "options",
    [("--in-cluster", "--kubeconfig", "k"), ("--in-cluster", "--store", "s"), ("--kubeconfig", "k", "--store", "s")],
)
def test_one_store_is_shown(devalloc: Shell, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "k").touch()
    output = devalloc("top", *(str(tmp_path / each) if len(each) == 1 else each for each in options))
    assert output.code == 2


def test_without_a_store_it_says_how_to_begin(devalloc: Shell, tmp_path: Path) -> None:
    output = devalloc("top", "--store", tmp_path / "none.db")
    assert (output.code, "devalloc up" in output.err) == (1, True)


def drawn(documents: list[Object], height: int, trouble: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=120, height=height, force_terminal=True, color_system=None)
    console.print(screen_content(CachedOverview("1", build_overview(documents), datetime.now(UTC), trouble), height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_all_of_it_fits_on_the_terminal() -> None:
    many = [gpu_class(), *(gpu_pool(f"p{i}", 1, f"n{i}") for i in range(100)), *(gpu_claim(f"c{i}") for i in range(50))]
    for height in (16, 24, 60):
        shown = drawn(many, height)
        assert len(shown) <= height
        assert any(line.startswith("Nodes: 100, of which ") for line in shown)
        assert any(line.startswith("Claims that wait: 50, of which ") for line in shown)
    assert not any("do not fit" in line for line in drawn(many, 200))


def test_what_others_wrote_does_nothing_to_the_terminal() -> None:
    hostile = "[red]\x1b]0;title\x07\x9b31m"
    claim = gpu_claim("c", reason=hostile, message=hostile)
    for line in drawn([gpu_class(), claim, gpu_pool(model=hostile)], 30, trouble=hostile):
        assert line.isprintable()
    assert any("[red]\\x1b]0;title" in line for line in drawn([claim], 30))


def printed(documents: Sequence[Object]) -> list[str]:
    with redirect_stdout(io.StringIO()) as out:
        print_overview(build_overview(documents), wide=False)
    return out.getvalue().splitlines()


def test_the_line_of_numbers_is_that_of_json(devalloc: Shell, store: SQLiteStore, path: Path) -> None:
    assert summary_line(build_overview(store.list().objects)) in devalloc("top", "--store", path).out
    assert json.loads(devalloc("top", "-o", "json", "--store", path).out)["counts"]["free"] == 3


def test_a_device_with_two_owners_is_a_red_line(devalloc: Shell, tmp_path: Path) -> None:
    held = {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}
    documents = [gpu_pool(), gpu_class(), gpu_claim("a") | {"status": held}, gpu_claim("b") | {"status": held}]
    line = "ALARM: device p/d0 has several owners: DeviceClaims default/a and default/b; delete all but one"
    assert any(each.startswith(line) for each in printed(documents))
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    console.print(screen_content(CachedOverview("1", build_overview(documents), datetime.now(UTC)), 30))
    assert isinstance(console.file, io.StringIO)
    assert f"\x1b[1;31m{line}" in console.file.getvalue()
    assert not any("ALARM" in each for each in printed(documents[:3]))


def test_many_alarms_leave_room_for_the_rest() -> None:
    held = [{"allocations": [{"devicePoolName": "p", "deviceName": f"d{i // 2}"}]} for i in range(40)]
    claims = [gpu_claim(f"c{i}") | {"status": each} for i, each in enumerate(held)]
    shown = drawn([gpu_pool(devices=20), *claims], 24)
    assert len(shown) <= 24
    assert any(line.startswith("and 15 more alarms") for line in shown)


class Pressed:
    """Keys that are pressed one after the other."""

    is_there = True

    def __init__(self, *keys: str) -> None:
        self._keys = list(keys)
        self.waits: list[float] = []

    def next(self, seconds: float) -> str:
        self.waits.append(seconds)
        return self._keys.pop(0)


def test_the_screen_is_drawn_at_its_interval_and_after_each_key_until_q(
    devalloc: Shell, store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[TopScreen] = []
    monkeypatch.setattr(top, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(top, "live_screen", lambda: nullcontext(lambda screen, sight: drawn.append(screen)))
    for interval, seconds in (("7s", 7.0), ("1ms", top.MIN_SECONDS)):
        drawn.clear()
        keys = Pressed("down", "up", "q")
        monkeypatch.setattr(top, "pressed_keys", partial(nullcontext, keys))
        assert devalloc("top", "--interval", interval, "--store", path).code == 0
        assert len(drawn) == 3
        assert all(seconds - 1 < wait <= seconds for wait in keys.waits)


# -- keys ------------------------------------------------------------------------------------------------------------


class Terminal:
    """A screen of a store, as text."""

    def __init__(self, documents: list[Object], width: int = 100, height: int = 40) -> None:
        self.screen = TopScreen()
        self.show(documents)
        self._size = height, width

    def show(self, documents: list[Object]) -> None:
        stored = FixedStore(documents)
        self._sight = OverviewCache(stored, stored)  # type: ignore[arg-type]  it only lists

    def press(self, *keys: str) -> list[str]:
        """The lines after these keys."""
        lines = self.lines()
        for key in keys:
            assert self.screen.press(key)
            lines = self.lines()
        return lines

    def lines(self) -> list[str]:
        height, width = self._size
        console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
        console.print(self.screen.draw(self._sight, height, width))
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        assert len(lines) <= height
        assert all(line.isprintable() and len(line) <= width for line in lines)
        return lines

    def marked(self) -> str:
        """The row that the keys moved to."""
        return next(line for line in self.lines() if line.startswith("> "))


def small_fleet() -> list[Object]:
    refused = gpu_claim("big", 9, reason="NotEnoughDevices", message="no node has 9 devices")
    held = gpu_claim("train") | {"status": {"allocations": [{"devicePoolName": "a", "deviceName": "d0"}]}}
    return [gpu_class(), gpu_pool("a", 2, "n1"), gpu_pool("b", 3, "n2"), refused, held]


def test_arrows_move_through_nodes_and_claims() -> None:
    terminal = Terminal(small_fleet())
    assert "n1" in terminal.marked()
    terminal.press("down")
    assert "n2" in terminal.marked()
    terminal.press("down")
    assert "default/big" in terminal.marked()
    terminal.press("down")
    assert "default/big" in terminal.marked(), "that was the last one"
    terminal.press("home")
    assert "n1" in terminal.marked()
    assert terminal.lines()[-1].startswith("q quits")


def test_enter_on_a_node_draws_its_cards_with_who_holds_them() -> None:
    terminal = Terminal(small_fleet())
    lines = terminal.press("enter")
    assert lines[0] == "node n1"
    assert [[part.strip() for part in line.split("|")[1:]] for line in lines if line.startswith("|")] == [
        ["d0", "d1"],
        ["default/train", ""],
    ]
    assert "Nodes: 2" in terminal.press("escape")


def test_enter_on_a_claim_shows_what_is_in_its_way() -> None:
    lines = Terminal(small_fleet()).press("end", "enter")
    assert lines[0] == "claim default/big"
    assert "     5 ████████████████████████ in the fleet" in lines
    assert "     4 ███████████████████      are free" in lines
    assert any(line.startswith("     1 " + " " * 19 + "█████ of those are in use") for line in lines)
    assert any(line.startswith("What to do: ") for line in lines)
    assert "More: devalloc explain big -n default" in lines


def test_a_search_leaves_the_rows_that_have_it() -> None:
    terminal = Terminal(small_fleet())
    lines = terminal.press("/", *"N2")
    assert lines[-1] == "/N2_"
    assert "Nodes: 1" in lines
    assert "n2" in terminal.marked()
    assert "Nodes: 2" in terminal.press("enter", "escape")
    assert terminal.press("/", *"nothing", "enter")[-1] == "/nothing   esc clears it   no match"


@pytest.mark.parametrize("text", ["MI300", "d1", "team-b/train"])
def test_a_search_finds_the_node_of_a_card_of_a_device_and_of_who_holds_it(text: str) -> None:
    """On the page it does, too."""
    held = gpu_claim("train") | {"status": {"allocations": [{"devicePoolName": "b", "deviceName": "d0"}]}}
    held["metadata"]["namespace"] = "team-b"
    terminal = Terminal([gpu_class(), gpu_pool("a", 1, "n1"), gpu_pool("b", 2, "n2", model="MI300X"), held])
    assert "Nodes: 1" in terminal.press("/", *text, "enter")
    assert "n2" in terminal.marked()


def test_why_a_device_cannot_be_had_is_there_to_the_end_on_a_narrow_terminal() -> None:
    why = "reserved: default route; no IOMMU group for 0000:00:03.0 (is the IOMMU switched on?); no reset method at all"
    pool = gpu_pool("a", 1, "n1")
    pool["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": why}]
    lines = Terminal([gpu_class(), pool], 80).press("enter")
    assert why in " ".join(" ".join(lines).split())


def test_a_row_that_is_moved_to_is_shown() -> None:
    many = [gpu_class(), *(gpu_pool(f"p{i}", 1, f"n{i}") for i in range(100))]
    terminal = Terminal(many, height=20)
    terminal.press(*["down"] * 60)
    assert " n60 " in terminal.marked()
    terminal.press("end")
    assert " n99 " in terminal.marked()


def test_a_picture_of_what_is_gone_gives_way_to_the_tables() -> None:
    terminal = Terminal(small_fleet())
    assert terminal.press("enter")[0] == "node n1"
    terminal.show([gpu_pool("b", 3, "n2")])
    assert terminal.lines()[0].startswith("devalloc top")


def test_names_of_others_do_nothing_to_the_terminal_in_pictures() -> None:
    hostile = "[red]\x1b]0;title\x07\x9b31m\u202e"
    pool = gpu_pool("a", 2, "n1", model=hostile)
    pool["spec"]["devices"][0]["attributes"] = [{"name": "devalloc.io/unavailable", "stringValue": hostile}]
    pool["spec"]["attributes"] = [*pool["spec"].get("attributes", []), {"name": "rack", "stringValue": hostile}]
    claim = gpu_claim("c", 9, reason="NotEnoughDevices", message=hostile)
    for width in (100, 30):
        terminal = Terminal([gpu_class(), pool, claim], width)
        assert "node n1"[:width] in terminal.press("enter")[0]
        terminal.press("escape", "end", "enter")


def test_racks_have_a_table_if_devices_name_them() -> None:
    pool = gpu_pool("a", 2, "n1")
    pool["spec"]["attributes"] = [*pool["spec"].get("attributes", []), {"name": "rack", "stringValue": "r1"}]
    lines = printed([pool, gpu_pool("b", 1, "n2")])
    at = next(i for i, line in enumerate(lines) if line.startswith("RACK"))
    assert [line.split()[:4] for line in lines[at + 1 : at + 3]] == [["r1", "1", "2", "2"], ["(none)", "1", "1", "1"]]
    assert not any("RACK" in line for line in printed([gpu_pool()]))


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B\x1bOC\x1b[5~", ["up", "down", "right", "page up"]),
        (b"\x1b", ["escape"]),
        (b"\r\x7f/\x01", ["enter", "backspace", "/", None]),
        (b"\x1b[200;3u\x1b[", [None, None]),
        (b"\xff\xc3\xa4", ["\ufffd", "ä"]),
    ],
)
def test_what_a_terminal_sends_becomes_keys(typed: bytes, names: list[str | None]) -> None:
    read, write = os.pipe()
    with closing(os.fdopen(write, "wb", buffering=0)) as end:
        end.write(typed)
        keys = Keys(read)
        assert [keys.next(0) for _ in names] == names
        assert keys.next(0) is None
    assert keys.next(0) is None
    assert not keys.is_there, "the terminal is gone"
    os.close(read)


def test_the_bar_of_a_node_has_a_mark_for_each_state_that_there_is() -> None:
    counts = DeviceCounts(free=900, shared=1, held=50, unavailable=1, excluded=1)
    assert counts_bar(counts).plain == "------▒█x░"
    assert counts_bar(DeviceCounts()).plain == " " * 10
    assert counts_bar(DeviceCounts(held=3)).plain == "█" * 10
