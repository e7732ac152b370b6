"""What is no snapshot is told apart from a snapshot with another answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.manifests import claim
from tests.unit.cli.conftest import Shell, text


@pytest.mark.parametrize("part", ["answer", "documents", "options"])
@pytest.mark.parametrize("damage", [None, 5, {}, "text"], ids=repr)
def test_a_damaged_snapshot_is_bad_input(devalloc: Shell, tmp_path: Path, part: str, damage: Any) -> None:
    devalloc("apply", "-f", "-", stdin=text(claim("a", {"deviceClass": "gpu"})))
    path = tmp_path / "snapshot.json"
    assert devalloc("snapshot", path).code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(json.dumps({**json.loads(path.read_text()), part: damage}))
    done = devalloc("replay", path)
    assert done.code == 2
    assert f"{path} is no snapshot" in done.err


def test_an_empty_store_name_is_bad_input(devalloc: Shell) -> None:
    done = devalloc("get", "pools", "--store", "")
    assert done.code == 2
    assert "names no file" in done.err
