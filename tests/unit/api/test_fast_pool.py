"""Reading pools quickly changes nothing: the same objects, the same problems, whatever is in them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api import decode as decoding
from devalloc.api import fast_pool
from devalloc.api.content_cache import ContentCache
from devalloc.api.decode import Decoded, decode
from devalloc.api.pool import Attribute, Device, DevicePool
from tests.support.examples import examples
from tests.support.good_manifests import good_manifests
from tests.support.manifest_mutations import mutated

POOLS = [manifest for manifest in good_manifests() if manifest["kind"] == "DevicePool"]


def with_care(manifest: dict[str, Any]) -> Decoded:
    """The same without the quick way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "_fast_pool", lambda _: None)
        return decode(manifest)


def assert_same(manifest: dict[str, Any]) -> None:
    quick, careful = decode(manifest), with_care(manifest)
    assert quick.problems == careful.problems
    assert quick.object == careful.object
    if isinstance(quick.object, DevicePool) and isinstance(careful.object, DevicePool):
        assert quick.object.to_manifest() == careful.object.to_manifest()
        assert fields(quick.object) == fields(careful.object)


def fields(pool: DevicePool) -> list[object]:
    """Which fields were given, in which order all of them stand, and of which type each value is."""
    models: list[Any] = [pool, pool.spec, *pool.spec.devices]
    models += [attribute for device in pool.spec.devices for attribute in device.attributes]
    return [
        (model.model_fields_set, list(model.__dict__), [type(value) for value in model.__dict__.values()])
        for model in models
    ]


@pytest.mark.parametrize("manifest", POOLS, ids=lambda manifest: manifest["metadata"]["name"])
def test_good_pools_are_the_same(manifest: dict[str, Any]) -> None:
    assert_same(manifest)


def test_the_quick_way_is_taken() -> None:
    """Otherwise the tests beside this one would compare the careful way with itself."""
    assert decoding._fast_pool(POOLS[0]) is not None


@given(st.integers(0, 2**32))
@settings(max_examples=examples(45, 0.375), deadline=None)
def test_damaged_pools_have_the_same_problems(seed: int) -> None:
    random = Random(seed)
    manifest = mutated(random.choice(POOLS), random)
    if manifest.get("kind") == "DevicePool":
        assert_same(manifest)


SCALARS = st.one_of(
    st.text(max_size=5),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.none(),
    st.floats(),
    st.sampled_from(["1Gi", "-1", "0", "1.2.3", "x" * 254, "x" * 5000, "é", "\ud800", "a\nb", [], {}]),
)
NAMES = st.one_of(st.sampled_from(["name", "numa", "uuid", "é", "", "x" * 253, "x" * 254, "a\x7f"]), SCALARS)
FIELDS = st.sampled_from(["stringValue", "intValue", "quantityValue", "semVerValue", "value", "string_value", "name"])


@given(st.lists(st.tuples(NAMES, st.lists(st.tuples(FIELDS, SCALARS), max_size=2)), max_size=3))
@settings(max_examples=examples(45, 0.375), deadline=None)
def test_attributes_of_all_sorts(listed: list[tuple[Any, list[tuple[str, Any]]]]) -> None:
    attributes = [{"name": name, **dict(values)} for name, values in listed]
    assert_same(_pool([{"name": "d", "attributes": attributes}]))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b", "c", "é", 1])},
            optional={
                "requests": st.dictionaries(st.sampled_from(["m", "é"]), SCALARS, max_size=2),
                "resources": st.lists(
                    st.fixed_dictionaries({"name": NAMES, "capacity": SCALARS}, optional={"blockSize": SCALARS}),
                    max_size=2,
                ),
                "more": SCALARS,
            },
        ),
        max_size=3,
    )
)
@settings(max_examples=examples(45, 0.375), deadline=None)
def test_devices_of_all_sorts(devices: list[dict[str, Any]]) -> None:
    assert_same(_pool(devices))


def test_values_that_are_equal_in_python_stay_different() -> None:
    """What was remembered of 1 must not serve for True, "1" or 1.0."""
    for value in (1, True, 1.0, "1", 0, False):
        for field in ("stringValue", "intValue", "quantityValue"):
            assert_same(_pool([{"name": "d", "attributes": [{"name": "a", field: value}]}]))
        assert_same(_pool([{"name": "d", "requests": {"m": value}}]))


def test_equal_attributes_are_one_object() -> None:
    """The reason why a large fleet takes little memory."""
    pool = decode(_pool([{"name": f"d{n}", "attributes": [{"name": "numa", "intValue": 0}]} for n in range(2)])).object
    assert isinstance(pool, DevicePool)
    first, second = pool.spec.devices
    assert first.attributes[0] is second.attributes[0]


def test_content_that_is_nested_deeply_is_read_with_care() -> None:
    content: Any = 1
    for _ in range(1_500):
        content = [content]
    assert_same(_pool([{"name": "d", "requests": content}]))


def test_the_cache_of_devices_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_pool, "MAX_CACHED", 3)
    monkeypatch.setattr(fast_pool, "_attributes", dict[Any, Attribute]())
    monkeypatch.setattr(fast_pool, "_device_templates", ContentCache[Device](3))
    devices = [
        {"name": f"d{n}", "requests": {f"r{n}": n}, "attributes": [{"name": "n", "intValue": n}]} for n in range(20)
    ]
    assert_same(_pool(devices))
    assert len(fast_pool._attributes) <= 3
    assert len(fast_pool._device_templates) <= 3


def _pool(devices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": "DevicePool",
        "metadata": {"name": "p"},
        "spec": {"driver": "gpu.devalloc.io", "resources": [{"name": "m", "capacity": 8}], "devices": devices},
    }
