"""Whatever users wrote, the overview is made, and shows the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devalloc.api.manifests import load
from devalloc.cli.render.fleet import print_overview
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from devalloc.usage.overview import build_overview
from devalloc.usage.page.pages import render_overview
from devalloc.usage.page.view import PageQuery
from tests.support.examples import examples
from tests.support.fleet_manifests import fill
from tests.support.machine_allocator import machine_allocator
from tests.support.overview_checks import adds_up
from tests.support.resource_manifests import (
    counters,
    device,
    resource_claim,
    resource_quota,
    slice_of,
    taint_rule,
    warning,
)

JUNK = [None, 0, -1, 1.5, True, "", "x", "9" * 400, "\ud800", [], [None], [1], [{}], {}, {"a": 1}, {"name": None}]
"""What a user may have written anywhere but in the metadata, which are the store's."""


def _theirs() -> list[Any]:
    """Of Kubernetes' own claims."""
    shared = device("s") | {"allowMultipleAllocations": True, "capacity": {"m": {"value": "4"}}}
    parts = [device("d", {"key": "a", "effect": "NoExecute"}, draws={"m": "2"}, function="vf", pciBusID="0"), shared]
    waiting = resource_claim("waiting", ours=True)
    return [
        slice_of("card", "n", of=2, name="sets", sharedCounters=[counters(m="4")]),
        slice_of("card", "n", parts, of=2),
        resource_claim("has", "card/d", pods=("p",)),
        resource_claim("shares", "card/s", shareID="1", consumedCapacity={"m": "1"}),
        waiting,
        warning(waiting, "NotEnoughDevices", "why"),
        taint_rule("rule", pool="card", device="s"),
        resource_quota("quota", used={"x.deviceclass.resource.k8s.io/devices": "1"}, gpu="1"),
    ]


THEIRS = _theirs()


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each container within, with each key or index."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(inner):
        yield content, key
        yield from places(value)


@pytest.mark.parametrize("seed", range(examples(2, 0.01)))
def test_the_overview_shows_the_rest_beside_any_junk(tmp_path: Path, seed: int) -> None:
    examples = load([f"examples/{name}" for name in ("mig-partitions", "placed-machines", "admin-access")]).documents
    with closing(SQLiteStore(tmp_path / "devalloc.db")) as store:
        fill(store, *{Key.of(each.content): each.content for each in examples}.values())
        machine_allocator(store).round()
        listed, random = store.list().objects, Random(seed)
    for _ in range(40):
        documents = deepcopy([*listed, *THEIRS])
        for _ in range(random.choice([1, 1, 2, 5])):
            document = random.choice(documents)
            within = [
                *places(document.get("spec")),
                *places(document.get("status")),
                *places(document.get("regarding")),
            ]
            container, key = random.choice(within)
            if random.random() < 0.2 and isinstance(container, dict):
                container.pop(key, None)
            elif key in container if isinstance(container, dict) else key < len(container):
                container[key] = deepcopy(random.choice(JUNK))
        summary = build_overview(documents)
        adds_up(summary)
        assert render_overview(summary, PageQuery(open=tuple(f"node:{node.name}" for node in summary.nodes))).encode(
            "utf-8", "replace"
        )
        with redirect_stdout(StringIO()) as out:
            print_overview(summary, wide=True)
        assert out.getvalue()
