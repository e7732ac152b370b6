"""``devalloc_solver.testing``: builders write valid manifests and refuse misspelt arguments; checks show reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import pytest
from pydantic import Field

from devalloc.api.claim import DeviceClaimDetail, DeviceConfigReference
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClassSpec
from devalloc.api.fields import AmountField, ApiModel, PlainName, Positive, Text
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc.api.validation.schema import field_schemas
from devalloc_solver import Fleet, solve_manifests, testing
from devalloc_solver.testing import (
    allocated,
    answer_of,
    assert_allocated,
    check_manifests,
    claim,
    device,
    device_class,
    devices_of,
    entry,
    one_of,
    pool,
    request,
)
from tools import reference

pytest_plugins = ["devalloc_solver.testing.fixtures", "pytester"]

CARD = device(
    "a",
    attributes={"model": "L4", "numa": 0, "memory": Quantity.parse("24Gi"), "version": SemVer.parse("1.2.3")},
    requests={"slices": 7},
    resources={"memory": "24Gi/1Gi", "cores": 4},
)
FLEET = [
    device_class("gpu", driver="gpu", deviceType="gpu"),
    pool("cards", "node-a", attributes={"vendor": "nvidia"}, resources={"slices": "7"}, devices=[CARD, device("b")]),
]


def test_builders_write_valid_manifests() -> None:
    check_manifests(
        *FLEET,
        pool("network", None),
        device_class("any"),
        claim(
            "train",
            request("gpu", 2, constraints="device.model == 'L4'", limits={"count": 4}, matchAttributes=["numa"]),
            one_of(request(deviceType="gpu"), request("any", requests={"memory": "5Gi"})),
            match=["numa"],
            priority=5,
            group="g",
            node="node-a",
            namespace="team-a",
            labels={"app": "web"},
        ),
        allocated(claim("held", request("gpu")), [entry("cards", "b", memory="5Gi")], node="node-a", details=["0"]),
    )


def test_what_a_builder_fills_in() -> None:
    assert claim("c", request("gpu", 2), priority=5, annotations={"x/y": "z"}) == {
        "apiVersion": "devmgmtproto.k8s.io/v1alpha1",
        "kind": "DeviceClaim",
        "metadata": {"name": "c", "namespace": "default", "annotations": {"x/y": "z", "devalloc.io/priority": "5"}},
        "spec": {"claims": [{"deviceClass": "gpu", "requests": {"count": 2}}]},
    }
    assert request("gpu", 1, requests={"memory": "1Gi"})["requests"] == {"count": 1, "memory": "1Gi"}
    assert CARD["resources"][0] == {"name": "memory", "capacity": "24Gi", "blockSize": "1Gi"}
    assert [sorted(each)[-1] for each in CARD["attributes"]] == ["stringValue", "name", "quantityValue", "semVerValue"]
    assert pool("network", None)["spec"] == {"driver": "gpu", "devices": []}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: device_class("gpu", devicetype="gpu"),
            "no argument 'devicetype'; did you mean deviceType?",
        ),
        (lambda: request("gpu", matchAttribute=["numa"]), "did you mean matchAttributes?"),
        (lambda: claim("c", priorty=3), "claim() has no argument 'priorty'; did you mean priority?"),
        (lambda: claim("c", zzz=3), "the fields are: annotations, "),
        (lambda: device("d", attributes={"ready": True}), "attribute ready: must be a text, an integer"),
        (lambda: device("d", attributes={"ratio": 0.5}), "not 0.5"),
    ],
)
def test_misspelt_arguments_are_errors(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        build()
    assert message in str(error.value)


def test_arguments_are_the_fields_of_the_models() -> None:
    assert reference.ARGUMENTS.read_text() == reference.arguments(), "generate them with: python -m tools.reference"
    assert get_type_hints(testing.RequestFields).keys() == field_schemas(DeviceClaimDetail).keys()
    assert get_type_hints(testing.ClassFields).keys() == field_schemas(DeviceClassSpec).keys()
    assert get_type_hints(testing.MetadataFields).keys() <= field_schemas(ObjectMeta).keys()


def test_an_argument_has_the_type_of_its_field() -> None:
    class OneOfEach(ApiModel):
        text: Text | None = None
        number: Annotated[int, Field(ge=0)] | None = None
        is_so: bool | None = None
        amount: AmountField | None = None
        amounts: dict[str, Positive] = Field(default_factory=dict)
        names: list[PlainName] = Field(default_factory=list)
        configs: list[DeviceConfigReference] = Field(default_factory=list)

    types = reference._typed_dict("Fields", "one", OneOfEach).split('"""')[-1]
    assert [line.split(": ") for line in types.split("\n    ")[1:]] == [
        ["text", "str"],
        ["number", "int"],
        ["isSo", "bool"],
        ["amount", "Amount"],
        ["amounts", "Mapping[str, Amount]"],
        ["names", "Sequence[str]"],
        ["configs", "Sequence[Manifest]\n"],
    ]


def test_check_manifests_lists_all_problems() -> None:
    wrong = claim("c", {"deviceClas": "gpu"}, {"requests": {"count": -1}})
    assert decode(wrong).problems
    with pytest.raises(ValueError, match="deviceClas") as error:
        check_manifests(*FLEET, wrong)
    assert "count" in str(error.value)


def test_devices_of_a_claim_or_the_reason() -> None:
    answer = solve_manifests([*FLEET, claim("one", request("gpu", 1)), claim("many", request("gpu", 9))])
    assert devices_of(answer, "one") == ["cards/b"] or devices_of(answer, "one") == ["cards/a"]
    assert answer_of(answer, "many")["reason"] == "NotEnoughDevices"
    with pytest.raises(AssertionError, match="default/many is not allocated: NotEnoughDevices: no node has 9 devices"):
        devices_of(answer, "many")
    with pytest.raises(KeyError, match="no claim other/one in the answer; it has default/many, default/one"):
        devices_of(answer, "one", "other")


def test_a_claim_that_the_answer_lacks_is_answered_with_the_first_names_that_it_has() -> None:
    answer = solve_manifests([*FLEET, *(claim(f"c{number}", request("gpu")) for number in range(7))])
    with pytest.raises(KeyError, match=r"it has default/c0, .*, default/c4 and 2 more"):
        devices_of(answer, "train")
    with pytest.raises(KeyError, match="no claim default/train in the answer; it has no claims"):
        devices_of(solve_manifests(FLEET), "train")


def test_the_fixture_makes_a_fleet(devalloc_fleet: Callable[..., Fleet]) -> None:
    fleet = devalloc_fleet(*FLEET)
    assert fleet.allocate(claim("c", request("gpu")))["allocated"]


def test_the_fixture_takes_lists_of_manifests(devalloc_fleet: Callable[..., Fleet]) -> None:
    fleet = devalloc_fleet(FLEET, pool("more", "node-b", devices=[device("c")]))
    assert len(assert_allocated(fleet.allocate(claim("c", request("gpu", 1))))) == 1
    with pytest.raises(ValueError, match="nodeNam"):
        devalloc_fleet([FLEET[0], {**FLEET[1], "spec": {"driver": "d", "nodeNam": "n"}}])


def test_the_fixture_refuses_what_the_fleet_would_leave_out(devalloc_fleet: Callable[..., Fleet]) -> None:
    with pytest.raises(ValueError, match="nodeNam"):
        devalloc_fleet({**FLEET[1], "spec": {"driver": "d", "nodeNam": "n"}})
    with pytest.raises(ValueError, match="cards"):
        devalloc_fleet(pool("cards", "node-a"), pool("cards", None))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: claim("c", "gpu"), "claim() takes requests such as request(\"gpu\"), not 'gpu'"),
        (lambda: one_of("gpu"), "one_of() takes alternatives such as request(\"gpu\"), not 'gpu'"),
        (lambda: pool("p", device=[]), "pool() has no argument 'device'; did you mean devices?"),
        (lambda: pool("p", devices=["a"]), "pool() takes devices such as device(\"gpu-0\"), not 'a'"),
        (lambda: pool("p", devices=device("a")), 'pool() takes several devices, such as [device("gpu-0")]'),
        (lambda: device("a", attribute={}), "device() has no argument 'attribute'; did you mean attributes?"),
    ],
)
def test_a_builder_refuses_what_would_become_an_invalid_manifest(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        build()
    assert message in str(error.value)


def test_an_assertion_has_the_reason_in_it() -> None:
    fleet = Fleet.from_manifests(FLEET)
    assert assert_allocated(fleet.allocate(claim("one", request("gpu", requests={"count": 1})))) == ["cards/a"]
    refused = claim("many", request("gpu", 9))
    for answer in (fleet.allocate(refused), solve_manifests([*FLEET, refused])):
        with pytest.raises(AssertionError, match="default/many is not allocated: NotEnoughDevices: "):
            assert_allocated(answer)


def test_an_answer_without_claims_is_not_allocated() -> None:
    with pytest.raises(AssertionError, match="no claims in the answer; add a claim"):
        assert_allocated(solve_manifests(FLEET))


def test_a_failure_is_shown_at_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    """Not at the line of the helper that raises it."""
    pytester.makepyfile("""
        from devalloc_solver import solve_manifests
        from devalloc_solver.testing import assert_allocated, check_manifests, claim, device_class, devices_of, request

        ANSWER = solve_manifests([device_class("gpu"), claim("train", request("gpu"))])

        def test_assert_allocated():
            assert_allocated(ANSWER)

        def test_devices_of():
            devices_of(ANSWER, "train")

        def test_devices_of_another():
            devices_of(ANSWER, "other")

        def test_check_manifests():
            check_manifests(claim("train", {}))
        """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=4)
    result.stdout.no_fnmatch_line("*testing/__init__.py:*")
