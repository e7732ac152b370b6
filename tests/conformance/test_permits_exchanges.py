"""Dialogues of agents of every version with the server of permits, over HTTP as it is on the wire."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from devalloc.api.quantity import Quantity
from devalloc.machines.permits import Host
from devalloc.scaling.resources import Resources
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import PermitBench, machine, permit_of, running, serving, write_status_part

DIALOGUES = yaml.safe_load((Path(__file__).parent / "exchanges" / "permits.yaml").read_text())


def _resources(of: dict[str, Any]) -> Resources:
    cpu, memory = Quantity.parse(of["cpu"]).nano // 10**6, Quantity.parse(of["memory"]).nano // 10**9
    return Resources(cpu, memory)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as name:
        yield Path(name)


@pytest.mark.parametrize("case", DIALOGUES, ids=[case["name"] for case in DIALOGUES])
def test_dialogue(case: dict[str, Any], folder: Path) -> None:
    limit, about = _resources(case["node"]), case["machine"]
    slot = about.get("slot")
    with closing(SQLiteStore(folder / "store.db")) as store:
        vm = machine("vm", slot=None if slot is None else Quantity.parse(slot).nano // 10**9)
        running(store, vm, _resources(about["use"]))
        more = {"conditions": [{"type": "Migrating", "status": "True"}]} if about.get("migrating") else {}
        write_status_part(store, "vm", runnerPod="vm-runner", **more)
    hosts = {"node-a": Host(limit, {("kube-system", "dns"): Resources(0, 0)})}
    with serving(folder / "store.db", lambda: hosts) as bench:
        wrong = [text for turn in case["dialogue"] for text in _turn(bench, turn)]
    assert wrong == []


def _turn(bench: PermitBench, turn: dict[str, Any]) -> Iterator[str]:
    """Say it, and tell what is wrong with what was answered."""
    body = turn["text"].encode() if "text" in turn else json.dumps(turn["send"]).encode()
    if "padded_to" in turn:
        body = b" " * (turn["padded_to"] - len(body)) + body
    with closing(http.client.HTTPConnection(*bench.addresses.requests, timeout=30)) as connection:
        connection.request(turn.get("method", "POST"), turn.get("path", "/"), body)
        answer = connection.getresponse()
        content = answer.read()
    named = f"{turn.get('about', turn.get('send'))}: answered {answer.status} {content!r}"
    if "refused" in turn:
        if answer.status != turn["refused"] or turn["text_of_answer"].encode() not in content:
            yield named
        if not (answer.headers["Content-Type"] or "").startswith("text/plain"):
            yield f"{named} as {answer.headers['Content-Type']}"
        return
    if (answer.status, answer.headers["Content-Type"]) != (200, "application/json") or (
        json.loads(content) != turn["answer"]
    ):
        yield f"{named}, not {turn['answer']}"
    permit = permit_of(bench.store, "vm")
    if "permitted" in turn and permit is not None:
        amounts = {name: permit[name] for name in ("cpus", "memory")}
        if amounts != turn["permitted"]:
            yield f"{named}, and {amounts} is written down"


def test_every_path_is_the_same(folder: Path) -> None:
    with closing(SQLiteStore(folder / "store.db")) as store:
        running(store, machine("vm"))
    with serving(folder / "store.db", lambda: {"node-a": Host(Resources(4000, 2**33))}) as bench:
        turn = {"text": "{", "refused": 400, "text_of_answer": "bad JSON"}
        assert [w for path in ("/", "/permit?x=1", "/%00") for w in _turn(bench, {**turn, "path": path})] == []
