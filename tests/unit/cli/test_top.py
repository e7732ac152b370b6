"""`devalloc top`: the numbers of `devalloc get`, for people and for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from devalloc.cli.render.fleet import overview_lines, screen_content, summary_line
from devalloc.cli.verbs import top
from devalloc.controller.overview import build_overview
from devalloc.controller.overview.cache import MIN_SECONDS, CachedOverview
from devalloc.controller.reconcile.device_claims import DeviceClaimAllocator
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import Shell
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool

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
        DeviceClaimAllocator(opened).round()
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


def test_the_line_of_numbers_is_that_of_json(devalloc: Shell, store: SQLiteStore, path: Path) -> None:
    assert summary_line(build_overview(store.list().objects)) in devalloc("top", "--store", path).out
    assert json.loads(devalloc("top", "-o", "json", "--store", path).out)["counts"]["free"] == 3


def test_a_device_with_two_owners_is_a_red_line(devalloc: Shell, tmp_path: Path) -> None:
    held = {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}
    documents = [gpu_pool(), gpu_class(), gpu_claim("a") | {"status": held}, gpu_claim("b") | {"status": held}]
    line = "ALARM: device p/d0 has several owners: DeviceClaim default/a and DeviceClaim default/b; release all but one"
    assert any(each.startswith(line) for each in overview_lines(build_overview(documents), wide=False))
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    console.print(screen_content(CachedOverview("1", build_overview(documents), datetime.now(UTC)), 30))
    assert isinstance(console.file, io.StringIO)
    assert f"\x1b[1;31m{line}" in console.file.getvalue()
    assert not any("ALARM" in each for each in overview_lines(build_overview(documents[:3]), wide=False))


def test_many_alarms_leave_room_for_the_rest() -> None:
    held = [{"allocations": [{"devicePoolName": "p", "deviceName": f"d{i // 2}"}]} for i in range(40)]
    claims = [gpu_claim(f"c{i}") | {"status": each} for i, each in enumerate(held)]
    shown = drawn([gpu_pool(devices=20), *claims], 24)
    assert len(shown) <= 24
    assert any(line.startswith("and 15 more alarms") for line in shown)


def test_the_screen_is_drawn_at_its_interval_and_never_without_a_pause(
    devalloc: Shell, store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[CachedOverview] = []
    pauses: list[float] = []

    def draw(overview: CachedOverview) -> None:
        drawn.append(overview)
        if len(drawn) > 5:
            raise KeyboardInterrupt

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(top, "time", SimpleNamespace(sleep=pause))
    monkeypatch.setattr("devalloc.cli.render.fleet.live_screen", lambda wide: nullcontext(draw))
    for interval, seconds in (("7s", 7.0), ("1ms", MIN_SECONDS)):
        drawn.clear(), pauses.clear()
        devalloc("top", "--interval", interval, "--store", path)
        assert (len(drawn), pauses) == (3, [seconds] * 3)
