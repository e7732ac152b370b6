"""A cell says the same in every table and text."""

from __future__ import annotations

import pytest

from devalloc.api.conditions import DEVICE_LOST
from devalloc.cli.render.cells import ago, amounts_cell, progress_text, state_cell
from devalloc.cli.render.columns import header_and_rows
from devalloc.cli.render.fleet import overview_tables
from devalloc.cli.render.output import StyledText, one_line
from devalloc.usage.overview import build_overview
from tests.support.host_pools import machine


@pytest.mark.parametrize(
    ("state", "style"),
    [
        *((word, "green") for word in ("Allocated", "Prepared", "Running", "Succeeded", "Ready")),
        *((word, "red") for word in (DEVICE_LOST, "Failed", "Unknown", "NotServed", "Lost", "Missing", "Fenced")),
        *((word, "yellow") for word in ("Pending", "Starting", "Cordoned")),
    ],
)
def test_a_state_has_its_colour(state: str, style: str) -> None:
    assert state_cell(state) == StyledText(state, style)


def test_a_machine_that_rests_has_no_colour() -> None:
    assert state_cell("Stopped") == "Stopped"


@pytest.mark.parametrize(
    ("cpus", "memory", "shown"),
    [("2", "4Gi", "2 4Gi"), ("", "4Gi", "- 4Gi"), ("2", "", "2 -"), ("", "", "-")],
)
def test_what_is_not_known_has_its_place_in_amounts(cpus: str, memory: str, shown: str) -> None:
    assert amounts_cell(cpus, memory) == shown


@pytest.mark.parametrize("moment", ["", "yesterday"])
def test_a_moment_that_cannot_be_read_has_no_age(moment: str) -> None:
    assert ago(moment) == ""


def test_progress_has_sizes_as_tables_have_them() -> None:
    progress = {"transferred": 3 << 29, "remaining": 100}
    assert progress_text({"status": {"progress": progress}}) == "1.5Gi sent, 100 left"


def test_the_fleet_shows_a_machine_as_the_list_does() -> None:
    vm = {**machine("web", "1", "1Gi"), "status": {"phase": "Running"}}
    (table,) = (one for one in overview_tables(build_overview([vm]), wide=False) if one.title == "Machines")
    headers, (row,) = header_and_rows("VirtualMachine", [vm], wide=False, namespaces=False)
    listed, shown = dict(zip(headers, row, strict=True)), dict(zip(table.headers, table.rows[0], strict=True))
    for header in ("PHASE", "NODE", "DEVICES", "REASON"):
        assert shown[header] == listed[header]
    assert one_line(shown["PHASE"]) == "Running"
