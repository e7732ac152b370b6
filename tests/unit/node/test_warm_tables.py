"""The tables of fcdaemon, row by row: `warm_cases.yaml`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from devalloc.inventory.capacity.cpus import format_cpu_list
from devalloc_machines.qemu.cpu_pinning import NotEnoughCpus, choose_cpus
from devalloc_machines.warm.function_replicas import image_name, number, replica_request
from devalloc_machines.warm.setup import check_identifier, is_identifier, new_identifier
from devalloc_node.errors import Denied
from tests.support.node_errors import raises
from tests.support.toy_setups import host

CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "warm_cases.yaml").read_text())


@pytest.mark.parametrize(("label", "text", "value"), CASES["numbers"])
def test_numbers_of_labels(label: str, text: str | None, value: int) -> None:
    parsed, note = number({} if text is None else {label: text}, label)
    assert parsed == value
    replaced = text is not None and not (text.isascii() and text.removeprefix("+").isdecimal() and int(text) == value)
    assert bool(note) == replaced, "what a label says is never replaced without a word"
    assert not note or (label in note and repr(text) in note and str(value) in note)


@pytest.mark.parametrize(("image", "name"), CASES["images"])
def test_images(image: str, name: str) -> None:
    assert image_name(image) == name


@pytest.mark.parametrize("case", CASES["requests"], ids=lambda case: case["name"])
def test_requests(case: dict[str, Any]) -> None:
    request = replica_request(case["labels"], case.get("env", {}), case["image"])
    computed = {
        "cpu": request.size.cpu,
        "memory": request.size.memory,
        "notes": len(request.notes),
        "credentials": dict(request.credentials),
    }
    for name, expected in case["expect"].items():
        assert (computed[name] if name in computed else getattr(request, name)) == expected, name
    assert all(secret not in repr(request) for secret in request.credentials.values() if len(secret) > 2)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["name"])
def test_refused_requests_tell_all_that_is_wrong(case: dict[str, Any]) -> None:
    with raises(Denied, "ReplicaInvalid") as refused:
        replica_request(case["labels"], case.get("env", {}), case["image"])
    for words in case["words"]:
        assert words in str(refused.value)
    assert "hidden" not in str(refused.value), "a secret is no part of a message"


def test_identifiers() -> None:
    assert [text for text in CASES["identifiers"]["valid"] if not is_identifier(text)] == []
    assert [text for text in CASES["identifiers"]["invalid"] if is_identifier(text)] == []
    assert is_identifier("a" * 76)
    assert not is_identifier("a" * 77)
    with pytest.raises(Denied, match=r"the prefix must be letters and digits"):
        check_identifier("prefix", "../up")
    made = {new_identifier("warm") for _ in range(1000)}
    assert len(made) == 1000
    assert all(map(is_identifier, made))


@pytest.mark.parametrize("case", CASES["pinning"], ids=lambda case: case["name"])
def test_pinning(case: dict[str, Any]) -> None:
    on, loads, chosen = host(case["nodes"], case.get("usable")), Counter[int](), []
    for vcpus in case["vcpus"]:
        pinned = choose_cpus(on, loads, vcpus)
        assert {node.id for node in on.nodes if node.cpus & set(pinned.cpus)} == set(pinned.nodes)
        loads.update(pinned.cpus)
        chosen.append(format_cpu_list(frozenset(pinned.cpus)))
    assert chosen == case["expect"]


def test_what_never_fits_is_denied_and_what_does_not_fit_now_may_be_asked_for_again() -> None:
    on = host({0: "0-1", 1: "2-3"})
    with raises(
        Denied,
        "CpusTooFew",
        retryable=False,
        match=r"not enough CPUs for 5 vCPUs on this host; .*node 0: 0-1; node 1: 2-3",
    ):
        choose_cpus(on, {}, 5)
    with pytest.raises(Denied, match="on one NUMA node") as never:
        choose_cpus(on, {}, 3, one_node=True)
    assert not never.value.retryable
    loads = {0: 1, 2: 1}
    with pytest.raises(NotEnoughCpus, match="1 on node 0, 1 on node 1") as now:
        choose_cpus(on, loads, 2, most=1, one_node=True)
    assert (now.value.code, now.value.retryable) == ("CpusInUse", True)
    assert choose_cpus(on, loads, 2, most=1).cpus == (1, 3)
    assert choose_cpus(on, {}, 2, exclusive={0, 3}).cpus == (1, 2)
    with pytest.raises(NotEnoughCpus, match="not enough free CPUs for 2 vCPUs; available: 1 on node 1"):
        choose_cpus(on, {}, 2, exclusive={0, 1, 3})
    with pytest.raises(NotEnoughCpus):
        choose_cpus(on, {0: 1, 1: 1, 2: 1}, 2, most=1)


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    machines=st.lists(st.integers(1, 5), max_size=12),
    most=st.integers(1, 3),
)
def test_no_cpu_has_more_than_it_may_and_none_is_refused_that_there_is_room_for(
    sizes: list[int], machines: list[int], most: int
) -> None:
    numbers = iter(range(100))
    on = host({node: ",".join(str(next(numbers)) for _ in range(size)) for node, size in enumerate(sizes)})
    loads = Counter[int]()
    for vcpus in machines:
        free = [sum(loads[cpu] < most for cpu in node.cpus) for node in on.nodes]
        try:
            pinned = choose_cpus(on, loads, vcpus, most=most)
        except Denied:
            assert sum(free) < vcpus
            continue
        assert len(set(pinned.cpus)) == vcpus
        assert set(pinned.cpus) <= on.usable
        assert (len(pinned.nodes) == 1) == (max(free) >= vcpus), "one node where one has room"
        loads.update(pinned.cpus)
        assert max(loads.values()) <= most
