"""Random hosts of which one file, folder or link cannot be read: nothing that the host needs or that is in use is
offered because of that (T3).

Not tried: processes that cannot be looked into, which the bindings refuse as a whole (`InUseUnknown`), and what hides
that a function is there or in which IOMMU group it is, of which the kernel gives no part away.
"""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from devalloc.inventory import network_use
from tests.support.discovery_view import DiscoveredPools
from tests.support.examples import examples
from tests.support.fake_tree import memory_folder
from tests.support.random_hosts import RandomHost

HOSTS, FAULTS = examples(8, 0.1), 40
CALLS = ("listdir", "lstat", "open", "readlink", "scandir")
_NOT_TRIED = re.compile(
    r"/proc|/proc/[0-9]+/.*|.*/(class|vendor|iommu_group)|/sys/.*/[0-9a-f:]{10}\.[0-7]|/sys/bus/pci/devices"
)


def offered(plan: RandomHost, root: Path, look: Callable[[str], None]) -> set[str]:
    """The devices that are offered. ``look``: called with each path that is looked at."""

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Any, *arguments: Any, **options: Any) -> Any:
            look(os.fsdecode(path) if not isinstance(path, int) else "")
            return call(path, *arguments, **options)

        return act

    calls = {name: watched(getattr(os, name)) for name in CALLS}
    with patch.multiple(os, **calls), patch.object(network_use, "stacked_interfaces", lambda tree: plan.stacked):
        inventory = DiscoveredPools.on(root, erase_policy=plan.erase_policy, allowed=plan.allowed)
    return {name for name in inventory.devices if inventory.unavailable(name) is None}


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_what_cannot_be_read_makes_nothing_free(code: int) -> None:
    wrong = []
    for seed in range(HOSTS):
        plan, chance = RandomHost.of(seed), random.Random(seed)
        with memory_folder() as folder:
            root = plan.build(Path(folder)).root
            free = {name for name, is_free in plan.offered().items() if is_free}
            paths: set[str] = set()
            assert offered(plan, root, paths.add) == free
            below = {path.removeprefix(str(root)) for path in paths if path.startswith(f"{root}/")}
            below = {path for path in below if not _NOT_TRIED.fullmatch(path)}
            for refused in chance.sample(sorted(below), min(FAULTS, len(below))):

                def refuse(path: str, refused: str = f"{root}{refused}") -> None:
                    if path == refused:
                        raise OSError(code, os.strerror(code), path)

                if more := offered(plan, root, refuse) - free:
                    wrong.append(f"seed {seed}: {refused} cannot be read, and {more} are offered")
    assert not wrong
