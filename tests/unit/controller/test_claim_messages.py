"""The Events of a ResourceClaim that waits: one for each reason, and later ones for other messages."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from devalloc.controller.reconcile.resource_claims.allocator import ResourceClaimAllocator
from devalloc.controller.reconcile.resource_claims.pending import PendingGroup

Object = dict[str, Any]


def an_object(kind: str, namespace: str, name: str) -> Object:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}-{name}"}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


class TestAnotherMessage:
    """The same reason can have another cause, which no user sees if it is not reported."""

    @pytest.fixture(autouse=True)
    def allocator(self) -> None:
        self.claims: dict[tuple[str, str], Object] = {}
        self.now = 100.0
        self.one = ResourceClaimAllocator(Mock(), stamp="1 a", clock=lambda: self.now)

    def waiting(self, name: str, namespace: str = "a", pods: int = 1) -> PendingGroup:
        """A claim, and the pods that wait for it."""
        self.claims[(namespace, name)] = an_object("ResourceClaim", namespace, name)
        waits = tuple(an_object("Pod", namespace, f"p{number}") for number in range(pods))
        return PendingGroup(((namespace, name),), waits, (), None)

    def count(self, want: PendingGroup, message: str, reason: str = "DevicesInUse") -> int:
        return len(self.one._refused(want, self.claims, reason, message))

    def test_it_is_reported_of_the_claim_and_its_pod(self) -> None:
        want = self.waiting("x")
        assert self.count(want, "node n1 is full") == 2
        self.now += 60
        events = self.one._refused(want, self.claims, "DevicesInUse", "node n1 is cordoned")
        assert [(each.regarding["name"], each.note) for each in events] == [
            ("x", "node n1 is cordoned"),
            ("p0", "node n1 is cordoned"),
        ]
        self.now += 3600
        assert self.count(want, "node n1 is cordoned") == 0, "the same message again is not reported again"

    def test_a_message_that_always_changes_is_reported_less_and_less_often(self) -> None:
        want, events = self.waiting("x"), []
        for second in range(0, 7200, 10):
            self.now = 100.0 + second
            if self.count(want, f"{second} devices are in use"):
                events.append(second)
        assert events == [0, 60, 180, 420, 900, 1860, 2820, 3780, 4740, 5700, 6660]

    def test_another_reason_is_reported_at_once(self) -> None:
        want = self.waiting("x")
        assert self.count(want, "m") == 2
        assert self.count(want, "m", "NoRoomForPod") == 2

    def test_no_namespace_has_more_than_its_share_of_those_of_all(self) -> None:
        wants = {name: [self.waiting(f"c{n}", namespace=name) for n in range(50)] for name in "abcdefg"}
        for message in ("first", "second"):
            counts = {name: sum(self.count(want, message) for want in own) for name, own in wants.items()}
            self.now += 60
        assert counts == {"a": 20, "b": 20, "c": 20, "d": 20, "e": 20, "f": 0, "g": 0}
        assert self.count(wants["f"][0], "second") == 2, "the next minute it is the turn of others"

    def test_a_group_of_many_pods_is_reported_of_some(self) -> None:
        want = self.waiting("x", pods=500)
        assert self.count(want, "first") == 501
        self.now += 60
        assert self.count(want, "second") == 20
