"""Conditions of machines that their node writes: ``Ready``, which is what guests with ``guestReports`` say, as far as
they run; and ``LiveMigratable``, whether a machine that runs could move to another node now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from devalloc.api.conditions import READY
from devalloc.api.machine_location import LIVE_MIGRATABLE
from devalloc.api.views import as_mapping, as_mappings
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store import Object
from devalloc_node.machine.guest_report import GuestReport
from devalloc_node.machine.records import MachineView

NOT_REPORTED = "GuestNotReported"
_NOT_RUNNING = "MachineNotRunning"
_MAX_MESSAGE = 4096
_OF_STATUS = {
    "ready": ("True", "GuestReady", "its guest reports that it is ready"),
    "not-ready": ("False", "GuestUnready", "its guest reports that it is not ready"),
    "finished": ("False", "GuestFinished", "its guest reports that it has finished"),
}


class ReportReader(Protocol):
    """Who reads what guests report; see `devalloc_node.vms.guest_reports`. Safe for threads."""

    def report(self, key: str, run: str) -> GuestReport | None:
        """What the guest of that run last reported; None while it has reported no status to this plugin."""

    def restore(self, key: str, run: str, message: str) -> None:
        """Have a machine ended whose guest has finished in that run, as its object says."""


def readiness(
    vm: VirtualMachine | None, machine: MachineView | None, reports: ReportReader | None
) -> Mapping[str, str] | None:
    """Status, reason and message of the condition; None for a machine that has none."""
    if vm is None or not vm.spec.guest_reports:
        return None
    if machine is None or not machine.runs:
        return _condition("False", _NOT_RUNNING, "it does not run")
    report = None if reports is None else reports.report(machine.key, machine.id)
    if report is None or report.status is None:
        return _condition("False", NOT_REPORTED, "its guest has reported nothing yet")
    status, reason, text = _OF_STATUS[report.status]
    return _condition(status, reason, f"{text}: {report.message}" if report.message else text)


def migratability(
    machine: MachineView | None, obstacle: str | None, pending: str, before: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Status, reason and message of LiveMigratable; None for a machine that does not run.

    ``obstacle``: what keeps it here, empty if nothing does, None if that is not known: what was ``before`` stays then.
    ``pending``: changes of its spec that wait for a restart, for the other node would start it with them.
    """
    if machine is None or not machine.runs or machine.phase == "Stopping":
        return None
    if obstacle is None:
        return before or None
    if why := obstacle or pending:
        return {
            "type": LIVE_MIGRATABLE,
            "status": "False",
            "reason": "MachineNotMovable",
            "message": why[:_MAX_MESSAGE],
        }
    return {"type": LIVE_MIGRATABLE, "status": "True", "reason": "Movable", "message": "it can move to another node"}


def _condition(status: str, reason: str, message: str, kind: str = READY) -> Mapping[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def finished_message(obj: Object, run: str) -> str | None:
    """With which message the guest of that run has finished, as the object says; None if it does not say so."""
    status = as_mapping(obj.get("status"))
    ready = next((one for one in as_mappings(status.get("conditions")) if one.get("type") == READY), {})
    if not run or status.get("machineID") != run or ready.get("reason") != "GuestFinished":
        return None
    return str(ready.get("message") or "").removeprefix(_OF_STATUS["finished"][2]).removeprefix(": ")


def with_readiness(
    before: Mapping[str, Any], run: str, ready: Mapping[str, str] | None, now: datetime | None = None
) -> list[Any]:
    """The conditions of a status with this one in place of its own; ``run``: of the machine now.

    A guest that has reported nothing to this plugin may have done so to the one before it: what was written about the
    same run stays.
    """
    conditions = list(as_mappings(before.get("conditions")))
    old = next((one for one in conditions if one.get("type") == READY), None)
    is_of_run = before.get("machineID") == run and old is not None and old.get("reason") != _NOT_RUNNING
    if is_of_run and ready is not None and ready["reason"] == NOT_REPORTED:
        return conditions
    return with_condition(conditions, READY, ready, now)


def with_condition(
    conditions: list[Any], kind: str, new: Mapping[str, Any] | None, now: datetime | None = None
) -> list[Any]:
    """Conditions with a new one of its type, or (None) without. The time of its last transition stays as long as its
    status does."""
    old = next((one for one in conditions if one.get("type") == kind), None)
    if new is None:
        return [one for one in conditions if one is not old]
    since = old.get("lastTransitionTime") if old is not None and old.get("status") == new["status"] else None
    new = {**new, "lastTransitionTime": since or (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")}
    return [*conditions, new] if old is None else [new if one is old else one for one in conditions]
