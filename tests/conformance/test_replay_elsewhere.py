"""What was decided comes out again in another process: same state, same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.support import random_fleets
from tests.support.examples import examples
from tests.support.repository import REPO


def test_decisions_and_their_reasons_come_out_again_byte_for_byte_in_another_process(tmp_path: Path) -> None:
    """With another order of sets and of the input: only ``seconds`` may differ."""
    documents = [document for seed in range(examples(2, 0.015)) for document in _apart(f"replay {seed}", seed)]
    fleet, snapshots = tmp_path / "fleet.json", [tmp_path / "one.json", tmp_path / "two.json"]
    for seed, path in enumerate(snapshots):
        Random(seed).shuffle(documents)
        fleet.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))
        _run(seed, "snapshot", path, "-f", fleet)
    answers = [json.loads(path.read_text())["answer"] for path in snapshots]
    assert any(one.get("blockers") and one.get("funnel") for one in answers[0]["claims"])
    assert len({json.dumps({**answer, "seconds": 0}) for answer in answers}) == 1
    assert "the same answer" in _run(5, "replay", snapshots[0])


def _apart(name: str, number: int) -> list[Any]:
    """A random fleet on nodes, in a namespace and with names of its own, and all its claims."""
    documents = random_fleets.documents(Random(name))
    content = json.dumps([d for d in documents if d["kind"] in ("DevicePool", "DeviceClaim", "DeviceClass")])
    for node in ("n1", "n2", "n3"):
        content = content.replace(f'"{node}"', f'"{node}-{number}"')
    separate: list[Any] = []
    for document in json.loads(content):
        pools = {d["metadata"]["name"] for d in documents if d["kind"] == "DevicePool"}
        if document["kind"] == "DevicePool":
            document["metadata"]["name"] += f"-{number}"
        elif document["kind"] == "DeviceClaim":
            document["metadata"]["namespace"] = f"team-{number}"
            for entry in document.get("status", {}).get("allocations", []):
                if entry["devicePoolName"] in pools:
                    entry["devicePoolName"] += f"-{number}"
        elif number:
            continue
        separate.append(document)
    return separate


def _run(seed: int, *args: object) -> str:
    """The command in a process with its own order of sets."""
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, "-m", "devalloc.cli", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPO, check=False)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    assert "bug" not in done.stderr, done.stderr
    return done.stdout
