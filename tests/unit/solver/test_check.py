"""The check of answers, rule by rule: what is right passes, and the smallest violation is named.

Here the devices of one claim. What claims do to each other is in test_check_across.py, the form of answers in
test_check_form.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.check import check
from tests.support.answer_builders import answer, assert_refused, claim, device, device_class, pool

GPUS = pool("p", device("g0"), device("g1"), device("g2"))


def judge(
    pools: DevicePool | Sequence[DevicePool],
    one: DeviceClaim,
    *answers: dict[str, Any],
    classes: Sequence[DeviceClass] = (),
) -> list[str]:
    return check([pools] if isinstance(pools, DevicePool) else pools, classes, [one], answers)


class TestNode:
    """One node for all devices of a claim (S7)."""

    NETWORK = pool("net", device("d0"), node=None)
    OTHER = pool("q", device("g0"), node="n2")
    FLEET = (GPUS, NETWORK, OTHER)
    PAIR = claim("a", {"requests": {"count": 2}})

    def test_a_node_reaches_its_own_pools_and_the_network(self) -> None:
        assert judge(self.FLEET, self.PAIR, answer("a", "p/g0", "net/d0")) == []

    def test_never_the_pools_of_another_node(self) -> None:
        violations = judge(self.FLEET, self.PAIR, answer("a", "p/g0", "q/g0"))
        assert "default/a: device q/g0 does not exist or is not reached from node n1 (S7)" in violations

    @pytest.mark.parametrize("missing", ["p/g9", "x/g0"])
    def test_devices_exist(self, missing: str) -> None:
        assert judge(self.FLEET, claim("a"), answer("a", missing)) == [
            f"default/a: device {missing} does not exist or is not reached from node n1 (S7)",
            "default/a: detail 0: has no device (S8)",
        ]

    def test_network_devices_alone_have_no_node(self) -> None:
        assert judge(self.FLEET, claim("a"), answer("a", "net/d0", node=None)) == []
        assert_refused(judge(self.FLEET, claim("a"), answer("a", "net/d0")), "network devices only")

    def test_a_device_of_a_node_needs_that_node(self) -> None:
        violations = judge(self.FLEET, claim("a"), answer("a", "p/g0", node=None))
        assert "default/a: device p/g0 does not exist or is not reached from the network alone (S7)" in violations

    def test_a_pin_decides(self) -> None:
        pinned = claim("a", pin="n1")
        assert judge(self.FLEET, pinned, answer("a", "p/g0")) == []
        assert_refused(judge(self.FLEET, pinned, answer("a", "q/g0", node="n2")), "pinned to node n1", "n2 (S7)")

    def test_a_pin_holds_for_network_devices_too_even_where_no_pool_is(self) -> None:
        pinned = claim("a", pin="bare")
        assert judge(self.FLEET, pinned, answer("a", "net/d0", node="bare")) == []
        assert_refused(judge(self.FLEET, pinned, answer("a", "net/d0", node=None)), "pinned to node bare")

    @pytest.mark.parametrize("noted", ["n2", None])
    def test_the_annotation_says_the_same(self, noted: str | None) -> None:
        right = answer("a", "p/g0")
        wrong = {k: v for k, v in right["annotations"].items() if k != meta.ALLOCATED_NODE}
        if noted is not None:
            wrong[meta.ALLOCATED_NODE] = noted
        assert_refused(judge(self.FLEET, claim("a"), {**right, "annotations": wrong}), f"says {noted}", "(S2)")

    @pytest.mark.parametrize("rival", ["n1", None])
    def test_pools_that_share_a_name_on_one_node_do_not_exist(self, rival: str | None) -> None:
        pools = [GPUS, pool("p", device("h0"), node=rival, driver="nic")]
        assert any("does not exist" in each for each in judge(pools, claim("a"), answer("a", "p/g0")))

    def test_pools_of_one_name_on_two_nodes_are_two_pools(self) -> None:
        pools = [GPUS, pool("p", device("g0"), node="n2")]
        assert judge(pools, claim("a"), answer("a", "p/g0", node="n2")) == []


class TestClassAndType:
    """Class, type, constraints (S5, S6, S6a)."""

    FLEET = (
        pool("p", device("new", {"model": "b", "speed": 9}), device("old", {"speed": 1}), attributes={"model": "a"}),
        pool("q", device("nic"), driver="nic"),
    )
    CLASSES = (
        device_class("gpu", driver="gpu", deviceType="accelerator"),
        device_class("fast", driver="gpu", deviceType="accelerator", constraints="device.speed > 5"),
        device_class("any", deviceType="thing"),
        device_class("broken", deviceType="thing2", constraints="device.speed >"),
        device_class("watch", deviceType="watched", adminAccess=True),
    )

    def judge(self, detail: dict[str, Any], taken: str) -> list[str]:
        return judge(
            self.FLEET, claim("a", {"requests": {"count": 1}, **detail}), answer("a", taken), classes=self.CLASSES
        )

    @pytest.mark.parametrize(
        ("detail", "taken"),
        [
            ({}, "q/nic"),
            ({"deviceClass": "gpu"}, "p/old"),
            ({"deviceClass": "fast"}, "p/new"),
            ({"deviceClass": "any"}, "q/nic"),
            ({"deviceType": "accelerator"}, "p/old"),
            ({"deviceType": "accelerator", "deviceClass": "fast"}, "p/new"),
            ({"deviceClass": "fast", "constraints": "device.speed < 10"}, "p/new"),
            ({"constraints": "device.model == 'a'"}, "p/old"),
            ({"constraints": "device.model == 'b'"}, "p/new"),
            ({"constraints": "size(device) == 2"}, "p/new"),  # reads the whole map
            ({"constraints": " "}, "p/new"),
        ],
    )
    def test_accepted(self, detail: dict[str, Any], taken: str) -> None:
        assert self.judge(detail, taken) == []

    @pytest.mark.parametrize(
        ("detail", "taken", "says"),
        [
            ({"deviceClass": "gpu"}, "q/nic", "is of driver nic, and class gpu is of driver gpu (S5)"),
            ({"deviceClass": "fast"}, "p/old", "does not match 'device.speed > 5' of class fast (S6)"),
            ({"deviceType": "accelerator"}, "q/nic", "is accepted by no class of type accelerator (S5)"),
            ({"deviceType": "none"}, "q/nic", "is accepted by no class of type none (S5)"),
            ({"deviceType": "thing", "deviceClass": "gpu"}, "p/old", "class gpu is not of type thing (S5)"),
            ({"deviceType": "watched"}, "p/old", "is accepted by no class of type watched (S5)"),
            ({"deviceType": "thing2"}, "p/new", "is accepted by no class of type thing2 (S5)"),
            ({"deviceClass": "gpu", "constraints": "device.speed > 5"}, "p/old", "does not match"),
            ({"constraints": "device.model == 'a'"}, "p/new", "does not match"),
            ({"constraints": "size(device) == 1"}, "p/new", "does not match"),
            ({"constraints": "device.speed > 0"}, "q/nic", "does not match"),  # an error: no such attribute
        ],
    )
    def test_refused(self, detail: dict[str, Any], taken: str, says: str) -> None:
        assert_refused(self.judge(detail, taken), says)

    @pytest.mark.parametrize("detail", [{"deviceType": "racer"}, {"deviceClass": "quick"}])
    def test_devices_are_judged_together_only_if_no_expression_tells_them_apart(self, detail: dict[str, Any]) -> None:
        """That of their class too, though the claim does not spell it out."""
        fleet = pool("p", device("new", {"wheels": 4}), device("old", {"wheels": 2}))
        quick = device_class("quick", deviceType="racer", constraints="device.wheels > 2")
        both = claim("a", {"requests": {"count": 2}, **detail})
        violations = judge(fleet, both, answer("a", "p/new", "p/old"), classes=[quick])
        assert [text.partition(": device ")[2].split()[0] for text in violations] == ["n1/p/old"]

    @pytest.mark.parametrize(
        ("detail", "says"),
        [
            ({"deviceClass": "absent"}, "class absent does not exist (S5)"),
            ({"deviceClass": "broken"}, "class broken is invalid"),
            ({"constraints": "device.speed >"}, "is invalid"),
            ({"constraints": "device.speed + 1"}, "is invalid"),
        ],
    )
    def test_an_invalid_claim_gets_nothing_even_through_its_other_alternative(
        self, detail: dict[str, Any], says: str
    ) -> None:
        assert_refused(self.judge(detail, "p/new"), "cannot be allocated", says)
        either = claim("a", {"oneOf": [{"requests": {"count": 1}}, detail]})
        violations = judge(self.FLEET, either, answer("a", "p/new", details="0.0"), classes=self.CLASSES)
        assert_refused(violations, "cannot be allocated", says)

    def test_two_classes_of_one_name_are_none(self) -> None:
        named = claim("a", {"deviceClass": "gpu"})
        twice = [device_class("gpu"), device_class("gpu")]
        assert_refused(judge(GPUS, named, answer("a", "p/g0"), classes=twice), "class gpu does not exist (S5)")

    def test_unavailable_devices_go_to_admins_only(self) -> None:
        busy = pool("p", device("g0", {meta.UNAVAILABLE: "in use: qemu 4711"}))
        assert_refused(judge(busy, claim("a"), answer("a", "p/g0")), "is unavailable: in use: qemu 4711 (S6a)")
        admin = claim("a", {"deviceClass": "watch"})
        assert judge(busy, admin, answer("a", "p/g0"), classes=self.CLASSES) == []

    def test_what_its_pool_does_not_define_a_device_cannot_draw(self) -> None:
        odd = pool("p", device("g0", draws={"slices": "1"}), device("g1", draws={"vfs": "1"}), has={"slices": "1"})
        assert judge(odd, claim("a"), answer("a", "p/g0")) == []
        assert_refused(
            judge(odd, claim("a"), answer("a", "p/g1")), "requests vfs, which its pool does not define (S12)"
        )


class TestWhole:
    """Counts and limits of details that take whole devices (S8, S9, S10)."""

    FLEET = pool("p", *(device(f"g{n}", has={"memory": ("10Gi", "4Gi")}) for n in range(4)))  # 8Gi usable each

    def judge(self, detail: dict[str, Any], count: int) -> list[str]:
        return judge(self.FLEET, claim("a", detail), answer("a", *(f"p/g{n}" for n in range(count))))

    @pytest.mark.parametrize(
        ("detail", "counts"),
        [
            ({}, {1}),
            ({"requests": {"count": 2}}, {2}),
            ({"limits": {"count": 3}}, {1, 2, 3}),
            ({"requests": {"count": 2}, "limits": {"count": 3}}, {2, 3}),
            ({"requests": {"count": 1, "memory": "9Gi"}, "limits": {"count": 4}}, {2, 3, 4}),
            ({"requests": {"count": 1, "memory": "16Gi"}, "limits": {"count": 4}}, {2, 3, 4}),
            ({"requests": {"count": 1, "memory": "17Gi"}, "limits": {"count": 4}}, {3, 4}),
            ({"requests": {"count": 1}, "limits": {"count": 4, "memory": "16Gi"}}, {1, 2}),
            ({"requests": {"count": 1}, "limits": {"count": 4, "memory": "15Gi"}}, {1}),
            ({"limits": {"memory": "7Gi"}}, set()),
            ({"requests": {"count": 1, "cores": "1"}, "limits": {"count": 4}}, set()),
            ({"requests": {"count": 1}, "limits": {"count": 4, "cores": "0"}}, {1, 2, 3, 4}),
        ],
    )
    def test_how_many_devices_are_right(self, detail: dict[str, Any], counts: set[int]) -> None:
        assert {count for count in range(1, 5) if self.judge(detail, count) == []} == counts

    def test_the_reasons(self) -> None:
        assert_refused(self.judge({}, 2), "has 2 devices, and may have 1 (S9)")
        assert_refused(self.judge({"requests": {"count": 3}}, 2), "has 2 devices, and 3 are requested (S8)")
        short = {"requests": {"count": 2, "memory": "17Gi"}}
        assert_refused(self.judge(short, 2), "17179869184 memory is less than the request of 17Gi (S10)")
        over = {"requests": {"count": 2}, "limits": {"memory": "9Gi"}}
        assert_refused(self.judge(over, 2), "17179869184 memory is more than the limit of 9Gi (S10)")

    def test_a_device_that_is_there_twice_is_named_and_no_other(self) -> None:
        twice = answer("a", "p/g0", "p/g1", "p/g0")
        violations = judge(self.FLEET, claim("a", {"requests": {"count": 3}}), twice)
        assert [text for text in violations if "entries" in text] == [
            "default/a: detail 0: has 2 entries for device n1/p/g0 (S18)"
        ]

    def test_a_whole_device_has_no_amounts(self) -> None:
        shared = answer("a", ("p/g0", {"memory": "4Gi"}))
        assert_refused(judge(self.FLEET, claim("a"), shared), "not shared here and still has amounts (S10)")


class TestShares:
    """Amounts of details that share devices (S9, S10, S11)."""

    FLEET = pool(
        "p",
        device("g0", has={"memory": ("10Gi", "4Gi"), "cores": "8"}),
        device("g1", has={"memory": ("10Gi", "4Gi")}),
        device("g2", has={"memory": ("10Gi", "1Gi"), "cores": ("4", "500m")}),
        device("bare"),
    )

    def judge(self, detail: dict[str, Any], *granted: Any) -> list[str]:
        return judge(self.FLEET, claim("a", detail), answer("a", *granted))

    @pytest.mark.parametrize(
        ("detail", "granted"),
        [
            ({"requests": {"memory": "4Gi"}}, [("p/g0", {"memory": "4Gi"})]),
            ({"requests": {"memory": "5Gi"}}, [("p/g0", {"memory": "8Gi"})]),
            ({"requests": {"memory": "1"}}, [("p/g0", {"memory": "4096Mi"})]),
            ({"requests": {"memory": "9Gi"}}, [("p/g0", {"memory": "8Gi"}), ("p/g2", {"memory": "1Gi"})]),
            ({"requests": {"memory": "9Gi"}}, [("p/g0", {"memory": "4Gi"}), ("p/g1", {"memory": "8Gi"})]),
            ({"requests": {"memory": "4Gi", "cores": "3500m"}}, [("p/g2", {"memory": "4Gi", "cores": "3500m"})]),
            ({"requests": {"memory": "4Gi", "cores": "3500m"}}, [("p/g0", {"memory": "4Gi", "cores": "4"})]),
            ({"requests": {"memory": "4Gi", "cores": "1"}}, [("p/g1", {"memory": "4Gi"}), ("p/g0", {"cores": "1"})]),
            ({"requests": {"memory": "9Gi"}, "limits": {"memory": "9Gi"}}, [("p/g2", {"memory": "9Gi"})]),
            ({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}, [("p/g0", {"memory": "4Gi"})]),
            ({"requests": {"memory": "1Gi"}, "limits": {"count": 1}}, [("p/g2", {"memory": "1Gi"})]),
        ],
    )
    def test_right_amounts(self, detail: dict[str, Any], granted: list[Any]) -> None:
        assert self.judge(detail, *granted) == []

    @pytest.mark.parametrize(
        ("detail", "granted", "says"),
        [
            ({"requests": {"memory": "5Gi"}}, [("p/g0", {"memory": "4Gi"})], "less than the request of 5Gi (S8)"),
            ({"requests": {"memory": "4Gi"}}, [("p/g0", {"memory": "8Gi"})], "could give a block of 4Gi memory less"),
            (
                {"requests": {"memory": "8Gi"}},
                [("p/g0", {"memory": "8Gi"}), ("p/g2", {"memory": "1Gi"})],
                "device n1/p/g2 could give a block of 1Gi memory less (S11)",
            ),
            ({"requests": {"memory": "5Gi"}}, [("p/g0", {"memory": "5Gi"})], "is not a multiple of 4Gi (S11)"),
            (
                {"requests": {"cores": "1200m"}},
                [("p/g2", {"cores": "1200m"})],
                "1200000000n cores of device n1/p/g2 is not a multiple",
            ),
            (
                {"requests": {"memory": "4Gi"}},
                [("p/g0", {"memory": "4Gi"}), ("p/g1", {"memory": "0"})],
                "an entry is more than zero (S11)",
            ),
            ({"requests": {"memory": "4Gi"}}, [("p/g0", {"memory": "4Gi"}), "p/g1"], "has no amounts (S10)"),
            (
                {"requests": {"memory": "4Gi"}},
                [("p/g0", {"memory": "4Gi", "cores": "1"})],
                "gives cores, which was not requested (S11)",
            ),
            ({"requests": {"memory": "9Gi"}}, [("p/g0", {"memory": "12Gi"})], "gives more memory than it has (S11)"),
            (
                {"requests": {"memory": "5Gi"}, "limits": {"count": 1}},
                [("p/g0", {"memory": "4Gi"}), ("p/g1", {"memory": "4Gi"})],
                "has 2 devices, and may have 1 (S9)",
            ),
        ],
    )
    def test_wrong_amounts(self, detail: dict[str, Any], granted: list[Any], says: str) -> None:
        assert_refused(self.judge(detail, *granted), says)

    def test_rounding_up_exceeds_a_limit_by_less_than_a_block_per_device(self) -> None:
        limited = {"requests": {"memory": "3Gi"}, "limits": {"memory": "4Gi"}}
        says = "default/a: detail 0: 8589934592 memory is more than the limit of 4Gi, rounding to blocks included (S9)"
        assert says in self.judge(limited, ("p/g0", {"memory": "8Gi"}))
        assert says not in self.judge(limited, ("p/g0", {"memory": "4Gi"}), ("p/g1", {"memory": "4Gi"}))

    def test_a_device_gives_what_it_has(self) -> None:
        violations = self.judge({"requests": {"memory": "1Gi"}}, ("p/bare", {"memory": "1Gi"}))
        assert "default/a: detail 0: device n1/p/bare has no memory to give (S11)" in violations

    def test_two_details_of_one_claim_may_share_a_device(self) -> None:
        both = claim("a", {"requests": {"memory": "4Gi"}}, {"requests": {"memory": "3Gi"}})
        right = answer("a", ("p/g0", {"memory": "4Gi"}), ("p/g0", {"memory": "4Gi"}), details="0 1")
        assert judge(self.FLEET, both, right) == []
        more = claim("a", {"requests": {"memory": "8Gi"}}, {"requests": {"memory": "3Gi"}})
        wrong = answer("a", ("p/g0", {"memory": "8Gi"}), ("p/g0", {"memory": "4Gi"}), details="0 1")
        assert_refused(judge(self.FLEET, more, wrong), "more memory than it has, shared with default/a: detail 1 (S11)")


class TestMatchAttributes:
    """One value over all devices, types included (S15, S3)."""

    FLEET = pool(
        "p",
        device("a0", {"root": "r0", "numa": 0, "size": Quantity.parse("1Gi"), "fw": SemVer("1.0.0")}),
        device("a1", {"root": "r0", "numa": 1, "size": Quantity.parse("1024Mi"), "fw": SemVer("1.0.0+b")}),
        device("a2", {"root": "r1", "numa": "0", "size": 1073741824, "fw": "1.0.0"}),
        device("a3"),
    )

    @pytest.mark.parametrize(
        ("name", "first", "second", "right"),
        [
            ("root", "a0", "a1", True),
            ("root", "a0", "a2", False),
            ("numa", "a0", "a1", False),
            ("numa", "a0", "a2", False),
            ("size", "a0", "a1", True),
            ("size", "a0", "a2", False),
            ("fw", "a0", "a1", False),
            ("fw", "a0", "a2", False),
            ("root", "a0", "a3", False),
            ("root", "a3", "a3", False),
        ],
    )
    def test_within_a_detail_and_over_the_spec(self, name: str, first: str, second: str, right: bool) -> None:
        devices = [f"p/{first}"] if first == second else [f"p/{first}", f"p/{second}"]
        one = claim("a", {"requests": {"count": len(devices)}, "matchAttributes": [name]})
        spec = claim("a", *[{"requests": {"count": 1}} for _ in devices], match=(name,))
        details = " ".join(str(index) for index in range(len(devices)))
        violations = [
            judge(self.FLEET, one, answer("a", *devices)),
            judge(self.FLEET, spec, answer("a", *devices, details=details)),
        ]
        if right:
            assert violations == [[], []]
        else:
            for each in violations:
                assert_refused(each, name, "(S15)")

    def test_two_details_may_differ_when_only_each_agrees_in_itself(self) -> None:
        agreeing = {"requests": {"count": 1}, "matchAttributes": ["root"]}
        apart = answer("a", "p/a0", "p/a2", details="0 1")
        assert judge(self.FLEET, claim("a", agreeing, agreeing), apart) == []
        assert_refused(judge(self.FLEET, claim("a", agreeing, agreeing, match=("root",)), apart), "differ in root")


class TestAdmin:
    """Details that watch devices (S14)."""

    FLEET = (
        pool("p", device("g0", {"root": "r"}), device("g1", {"root": "r"}), device("bad", draws={"x": "1"})),
        pool("q", device("g2", {"root": "s"}), node="n2"),
        pool("net", device("d0", {"root": "r"}), node=None),
        pool("other", device("n0"), driver="nic"),
    )
    CLASSES = (device_class("watch", driver="gpu", adminAccess=True),)
    ALL = ("p/g0", "p/g1", "net/d0")

    def judge(self, detail: dict[str, Any], *taken: str, node: str | None = "n1") -> list[str]:
        watching = claim("a", {"deviceClass": "watch", **detail})
        return judge(self.FLEET, watching, answer("a", *taken, node=node), classes=self.CLASSES)

    def test_without_a_count_all_that_match_and_are_reached(self) -> None:
        assert self.judge({}, *self.ALL) == []
        assert self.judge({}, "q/g2", "net/d0", node="n2") == []

    def test_not_one_of_them_is_left_out(self) -> None:
        assert_refused(self.judge({}, "p/g0", "net/d0"), "device n1/p/g1 matches", "(S14)")

    def test_a_device_that_cannot_be_allocated_does_not_match(self) -> None:
        assert_refused(self.judge({}, *self.ALL, "p/bad"), "n1/p/bad requests x")

    def test_an_explicit_count_is_exact(self) -> None:
        assert self.judge({"requests": {"count": 2}}, "p/g0", "p/g1") == []
        assert_refused(self.judge({"requests": {"count": 2}}, "p/g0"), "2 are requested (S8)")
        wide = {"requests": {"count": 1}, "limits": {"count": 2}}
        assert_refused(self.judge(wide, "p/g0", "p/g1"), "may have 1 (S9)")

    def test_more_matching_than_the_limit_is_no_answer(self) -> None:
        assert self.judge({"limits": {"count": 3}}, *self.ALL) == []
        assert_refused(self.judge({"limits": {"count": 2}}, *self.ALL), "has 3 devices, and may have 2 (S9)")

    def test_resources_do_not_count(self) -> None:
        assert self.judge({"requests": {"memory": "1Ti"}, "limits": {"memory": "1Ti"}}, *self.ALL) == []

    def test_there_are_no_amounts(self) -> None:
        watching = claim("a", {"deviceClass": "watch", "requests": {"count": 1}})
        violations = judge(self.FLEET, watching, answer("a", ("p/g0", {"memory": "1"})), classes=self.CLASSES)
        assert_refused(violations, "still has amounts")

    def test_all_of_them_agree(self) -> None:
        assert self.judge({"matchAttributes": ["root"]}, *self.ALL) == []
        assert_refused(self.judge({"matchAttributes": ["root"]}, "q/g2", "net/d0", node="n2"), "differ in root")

    def test_the_match_of_the_spec_includes_them(self) -> None:
        mixed = claim("a", {"deviceClass": "watch"}, {"requests": {"count": 1}}, match=("root",))
        wrong = answer("a", *self.ALL, "other/n0", details="0 0 0 1")
        assert_refused(judge(self.FLEET, mixed, wrong, classes=self.CLASSES), "other/n0 lacks the attribute root")

    def test_they_take_nothing_from_other_claims(self) -> None:
        mixed = claim("a", {"deviceClass": "watch"}, {"requests": {"count": 1}})
        assert judge(self.FLEET, mixed, answer("a", *self.ALL, "p/g0", details="0 0 0 1"), classes=self.CLASSES) == []
