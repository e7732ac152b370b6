"""A file that is not a snapshot has another message than a snapshot with another answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_shell import Shell, claim, device_class, pool, text


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        *((part, damage) for part in ("answer", "documents", "options") for damage in (None, 5, {}, "text")),
        ("options", {"placement": "elsewhere", "deadline": None}),
        ("options", {"placement": "pack", "deadline": "soon"}),
        ("options", {"placement": "pack", "deadline": -1}),
    ],
    ids=repr,
)
def test_a_damaged_snapshot_is_bad_input(devalloc: Shell, tmp_path: Path, part: str, damage: Any) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim("a")))
    path = tmp_path / "snapshot.json"
    assert devalloc("snapshot", path).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(json.dumps({**json.loads(path.read_text()), part: damage}))
    done = devalloc("replay", path)
    assert done.code == 2
    assert f"{path} is not a snapshot" in done.err


def test_a_store_that_names_no_file_is_bad_input(devalloc: Shell) -> None:
    done = devalloc("get", "pools", "--store", ".")
    assert done.code == 2
    assert "must name a file" in done.err


def test_what_cannot_be_read_is_kept_as_it_is(devalloc: Shell, tmp_path: Path) -> None:
    share = {"devicePoolName": "gpus", "deviceName": "gpu-0", "allocations": [{"name": "mem", "allocation": "-5"}]}
    held = {**claim("held"), "status": {"allocations": [share]}}
    half = json.dumps(claim("half")).replace("half", "h\\ud800")
    path = tmp_path / "snapshot.json"
    stdin = "".join((json.dumps(pool(devices=1)), json.dumps(device_class()), json.dumps(held), half))

    assert devalloc("snapshot", path, "-f", "-", stdin=stdin).code == 2
    snapshot = json.loads(path.read_text())
    assert snapshot["documents"][2]["status"] == held["status"]
    assert snapshot["documents"][3]["metadata"]["name"] == "h\ud800"
    done = devalloc("replay", path)
    assert done.code == 0
    assert "the same answer for 2 claims" in done.out
