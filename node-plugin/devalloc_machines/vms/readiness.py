"""Conditions of machines that their node writes: ``Ready``, whether it runs and, with ``guestReports``, its guest says
that it is ready; and ``LiveMigratable``, whether a machine that runs could move to another node now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from devalloc.api.conditions import READY, find_condition, with_condition, without_conditions
from devalloc.api.machine_location import LIVE_MIGRATABLE
from devalloc.api.serving import served_conditions
from devalloc.api.views import as_mapping, as_mappings
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store import Object
from devalloc_machines.qemu.guest_report import GuestReport
from devalloc_machines.qemu.records import MachineView

NOT_REPORTED = "GuestNotReported"
NOT_RUNNING = "MachineNotRunning"
_MAX_MESSAGE = 4096
_OF_STATUS = {
    "ready": ("True", "GuestReady", "its guest reports that it is ready"),
    "not-ready": ("False", "GuestUnready", "its guest reports that it is not ready"),
    "finished": ("False", "GuestFinished", "its guest reports that it has finished"),
}


class ReportReader(Protocol):
    """Who reads what guests report; see `devalloc_machines.vms.guest_reports`. Safe for threads."""

    def report(self, key: str, run: str) -> GuestReport | None:
        """What the guest of that run last reported; None while it has reported no status to this plugin."""

    def restore(self, key: str, run: str, message: str) -> None:
        """Have a machine ended whose guest has finished in that run, as its object says."""


def readiness(
    vm: VirtualMachine | None,
    machine: MachineView | None,
    reports: ReportReader | None,
    why: tuple[str, str] = ("", ""),
) -> Mapping[str, str] | None:
    """Status, reason and message of the condition; None for a machine that is stopped on request and whose guest
    does not report, and for one that cannot be read. ``why``: the code and message of why it does not run."""
    if vm is None:
        return None
    if not vm.spec.guest_reports:
        return _readiness_by_phase(vm, machine, why)
    if machine is None or not machine.runs:
        return _condition("False", NOT_RUNNING, "it does not run")
    report = None if reports is None else reports.report(machine.key, machine.id)
    if report is None or report.status is None:
        return _condition("False", NOT_REPORTED, "its guest has reported nothing yet")
    status, reason, text = _OF_STATUS[report.status]
    return _condition(status, reason, f"{text}: {report.message}" if report.message else text)


def _readiness_by_phase(
    vm: VirtualMachine, machine: MachineView | None, why: tuple[str, str]
) -> Mapping[str, str] | None:
    if machine is not None and machine.shown_phase == "Running" and not machine.is_paused:
        return _condition("True", "MachineRunning", "it runs")
    if not (vm.spec.running or (machine is not None and machine.runs)):
        return None
    own = ("", "") if machine is None else (machine.reason, machine.message)
    reason, message = why if why[0] else own
    return _condition("False", reason or NOT_RUNNING, message or "it does not run")


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
    ready = find_condition(served_conditions(status.get("conditions")), READY)
    if not run or status.get("machineID") != run or ready.get("reason") != "GuestFinished":
        return None
    return str(ready.get("message") or "").removeprefix(_OF_STATUS["finished"][2]).removeprefix(": ")


def with_readiness(
    before: Mapping[str, Any],
    run: str,
    ready: Mapping[str, str] | None,
    generation: object = None,
) -> list[Any]:
    """The conditions of a status with this one in place of its own; ``run``: of the machine now.

    A guest that has reported nothing to this plugin may have done so to the one before it: what was written about the
    same run stays. What the controller wrote while no plugin ran here goes.
    """
    conditions = served_conditions(list(as_mappings(before.get("conditions"))))
    old = find_condition(conditions, READY)
    is_of_run = before.get("machineID") == run and old and old.get("reason") != NOT_RUNNING
    if is_of_run and ready is not None and ready["reason"] == NOT_REPORTED:
        return conditions
    return replaced_condition(conditions, READY, ready, generation)


def replaced_condition(
    conditions: list[Any],
    name: str,
    new: Mapping[str, Any] | None,
    generation: object = None,
    now: datetime | None = None,
) -> list[Any]:
    """Conditions with a new one of its type, or (None) without."""
    if new is None:
        return without_conditions(conditions, [name])
    at = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return with_condition(conditions, name, (new["status"], new["reason"], new["message"]), at, generation)
