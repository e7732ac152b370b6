"""What a device is, and whether claims may get it, is read from its pool in one place; the check reads it again."""

from __future__ import annotations

import re

import pytest

from devalloc.api.meta import UNAVAILABLE
from devalloc.api.pool import DevicePool, unavailability
from devalloc.cli.render.host import _pool_row, attribute_texts
from devalloc_solver.testing import device, pool
from tests.support.repository import REPO

PRODUCT = (REPO / "devalloc", REPO / "solver" / "devalloc_solver", REPO / "node-plugin")
READS = re.compile(r"get\((?:meta\.)?UNAVAILABLE\b|UNAVAILABLE (?:not )?in \w*attributes|UNAVAILABLE (?:not )?in own")
BY_ITSELF = {"devalloc/api/pool.py", "devalloc/inventory/pools.py"}
"""Where it is read: there, and by the inventory of what that writes itself."""
CARDS = pool(
    "cards",
    "n1",
    driver="gpu.devalloc.io",
    attributes={"function": "gpu", "numa": 1},
    devices=[device("a"), device("b", attributes={"numa": 0}), device("c", attributes={UNAVAILABLE: ""})],
)


def test_an_attribute_of_a_device_hides_that_of_its_pool() -> None:
    effective = DevicePool.model_validate(CARDS, by_alias=True).spec.effective_attributes
    assert effective["a"] == {"function": "gpu", "numa": 1}
    assert effective["b"] == {"function": "gpu", "numa": 0}
    for one in CARDS["spec"]["devices"]:
        shown = attribute_texts(CARDS, one)
        assert shown == {name: str(value) for name, value in effective[one["name"]].items()}


@pytest.mark.parametrize(
    ("attributes", "why"), [({}, None), ({UNAVAILABLE: "broken"}, "broken"), ({UNAVAILABLE: 0}, "0")]
)
def test_a_device_is_unavailable_if_it_has_the_attribute(attributes: dict[str, object], why: str | None) -> None:
    assert unavailability(attributes) == why


def test_a_device_is_unavailable_without_a_text_as_well() -> None:
    assert unavailability({UNAVAILABLE: ""}) == ""
    offers = [_pool_row({**CARDS, "spec": {**CARDS["spec"], "devices": [one]}})[5] for one in CARDS["spec"]["devices"]]
    assert offers == ["gpu", "gpu", "-"]


def test_only_the_check_reads_by_itself_whether_a_device_is_unavailable() -> None:
    readers = {
        str(path.relative_to(REPO))
        for folder in PRODUCT
        for path in folder.rglob("*.py")
        if READS.search(path.read_text())
    }
    assert {each for each in readers if not each.startswith("solver/devalloc_solver/check/")} == BY_ITSELF
