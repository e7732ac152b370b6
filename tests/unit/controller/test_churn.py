"""What a controller remembers does not grow with what has come and gone."""

from __future__ import annotations

import gc
import threading
from contextlib import closing
from typing import Any

import pytest

from devalloc.controller import event_recorder as recorder_module
from devalloc.controller.event_recorder import EventRecorder
from devalloc.controller.reconcile.device_claims import AllocatorListener, DeviceClaimAllocator
from devalloc.controller.reconcile.events import claim_events
from devalloc.store.kubernetes import KubernetesStore
from devalloc_solver.fleet import node_index
from tests.support.fake_kube import FakeClient, FakeKube
from tests.support.fleet_manifests import fill, gpu_claim, gpu_class, gpu_pool

Object = dict[str, Any]
MAX_REMEMBERED = 20
"""Deleted objects that the store remembers."""


class Written:
    """Takes every Event."""

    def create(self, path: str, body: Object) -> Object:
        return body

    def replace(self, path: str, body: Object) -> Object:
        return body


def test_caches_of_claims_that_came_and_went_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that live are counted, wherever they are: store, reading, fleet, judge, refusals, recorder. What has a
    bound gets one that is reached here."""
    monkeypatch.setattr(node_index, "MIN_CHANGES_KEPT", MAX_REMEMBERED)
    monkeypatch.setattr(recorder_module, "MAX_SERIES", MAX_REMEMBERED)
    client, stop = FakeClient(FakeKube()), threading.Event()
    recorder = EventRecorder(Written(), "a")
    stop.set()
    with closing(KubernetesStore(client, deletions_kept=MAX_REMEMBERED)) as store:  # type: ignore[arg-type]
        fill(store, gpu_class(), *(gpu_pool(f"p{number}", node=f"n{number}") for number in range(4)))
        allocator = DeviceClaimAllocator(
            store,
            listener=AllocatorListener(wrote=lambda before, after: recorder.record(claim_events(before, after))),
        )

        def churn(turn: int) -> None:
            names = [f"c{turn}-{number}" for number in range(6)]
            fill(store, *(gpu_claim(name, count=1 + number % 2) for number, name in enumerate(names)))
            fill(store, gpu_claim(f"large-{turn}", count=9))
            for _ in range(3):
                allocator.round()
            for name in [*names, f"large-{turn}"]:
                store.delete("DeviceClaim", "default", name)
            allocator.round()
            recorder.run(stop)
            client.kube.history.clear()  # the server's own memory
            client.writes.clear()

        def living() -> int:
            gc.unfreeze()
            gc.collect()
            return len(gc.get_objects()) + gc.get_freeze_count()

        for turn in range(6):
            churn(turn)
        before = living()
        for turn in range(6, 22):
            churn(turn)
        grown = living() - before
    assert grown < 60, f"{grown} more objects live after 112 claims"
