"""Whatever somebody wrote, the overview is made, and shows the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devalloc.api.manifests import load
from devalloc.cli.fleet import lines_of
from devalloc.controller.allocate import Allocator
from devalloc.controller.overview import overview
from devalloc.controller.page.parts import Asked
from devalloc.controller.page.render import view
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleets import fill
from tests.support.overviews import adds_up

JUNK = [None, 0, -1, 1.5, True, "", "x", "9" * 400, "\ud800", [], [None], [1], [{}], {}, {"a": 1}, {"name": None}]
"""What somebody may have written anywhere but in the metadata, which are the store's."""


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each container within, with each key or index."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(inner):
        yield content, key
        yield from places(value)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_somebody_wrote_the_rest_is_shown(tmp_path: Path, seed: int) -> None:
    examples = load([f"examples/{name}" for name in ("mig-partitions", "placed-machines", "admin-access")]).documents
    with closing(SQLiteStore(tmp_path / "devalloc.db")) as store:
        fill(store, *{Key.of(each.content): each.content for each in examples}.values())
        Allocator(store).round()
        listed, random = store.list().objects, Random(seed)
    for _ in range(40):
        documents = deepcopy(listed)
        for _ in range(random.choice([1, 1, 2, 5])):
            document = random.choice(documents)
            container, key = random.choice([*places(document.get("spec")), *places(document.get("status"))])
            if random.random() < 0.2 and isinstance(container, dict):
                container.pop(key, None)
            elif key in container if isinstance(container, dict) else key < len(container):
                container[key] = deepcopy(random.choice(JUNK))
        found = overview(documents)
        adds_up(found)
        assert view(found, Asked(open=tuple(f"node:{node.name}" for node in found.nodes))).encode("utf-8", "replace")
        assert list(lines_of(found, wide=True))
