"""Which devices the evaluators of expressions judge differently for a request, whatever is in use."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from devalloc.api.claim import DeviceClaimDetail
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver.check.cel_results import CelResults
from devalloc_solver.check.classes import ClassCatalogue
from devalloc_solver.check.pools import KnownPools

Place = tuple[str | None, str, str]
"""node, pool and name of a device"""
Key = tuple[str, str]
_CLAIM: Key = ("", "")


class DisputedDevices:
    """Judges devices for requests with both evaluators, as the check of an answer with these devices does.

    All questions have the steps of cel-python that one call of the check has. Beyond them nothing is disputed.
    """

    def __init__(self, pools: Iterable[DevicePool], classes: Iterable[DeviceClass]) -> None:
        self._fleet = KnownPools(pools)
        self._verdicts = CelResults()
        self._verdicts.begin_call()
        self._catalogue = ClassCatalogue(classes, self._verdicts)

    def find(
        self, detail: DeviceClaimDetail, devices: Mapping[int, Place], check_time: Callable[[], None]
    ) -> dict[int, list[str]]:
        """Those of ``devices`` that are disputed, with the disagreements. ``check_time`` is called before each
        evaluation, and raises an exception once the time is over. Raises budget.BudgetExceeded."""
        names = self._catalogue.names_read(detail)
        judged: dict[Hashable, list[str]] = {}
        disputed = {}
        for number, place in devices.items():
            pooled = self._fleet.find(*place)
            if pooled is None:
                continue
            read = names if names is not None else sorted(pooled.attributes)
            values = (*((name, pooled.attributes.get(name)) for name in read),)
            key = (pooled.pool.spec.driver, values)
            if key not in judged:
                check_time()
                self._verdicts.begin_claim()
                self._catalogue.refusal(detail, pooled)
                self._verdicts.disputed.pop(_CLAIM, None)
                self._verdicts.end_claim(_CLAIM)
                judged[key] = self._verdicts.disputed.get(_CLAIM, [])
            if judged[key]:
                disputed[number] = judged[key]
        return disputed
