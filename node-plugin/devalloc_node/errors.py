"""How things fail: denied, failed and unknown are kept apart everywhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence

log = logging.getLogger(__name__)

# docs/node-codes.md lists both; a test compares them.
TRANSIENT = frozenset(
    {
        "BridgeInUse",
        "ClaimNameHeld",
        "ClaimNotAllocated",
        "ClaimTakenAway",
        "ConsoleInUse",
        "CopyUnfinished",
        "CpusInUse",
        "DeadlineExceeded",
        "DeviceExhausted",
        "DeviceGone",
        "DeviceInUse",
        "DeviceWithheld",
        "DiskInUse",
        "DriverMissing",
        "DriverUnknown",
        "FirmwareChanged",
        "FirmwareInvalid",
        "FirmwareMissing",
        "ForwardingOff",
        "GuestNotReady",
        "GuestRefused",
        "HostDiskFull",
        "HostFull",
        "HugePagesTooFew",
        "IdentityUnseen",
        "ImageChanged",
        "InUseUnknown",
        "MachineLost",
        "MachineMigrates",
        "MachineMigrating",
        "MachineNotRunning",
        "NoFreePciSlot",
        "NoFreeUser",
        "NodeServed",
        "PathMissing",
        "PermitRefused",
        "PoolInUse",
        "QemuMissing",
        "SetupBusy",
        "SetupInUse",
        "SharedDiffers",
        "SwtpmMissing",
        "TapDiffers",
        "TapInUse",
        "TapMissing",
        "TryAgain",
        "VfCountFixed",
        "VfsEnabled",
        "VfsInUse",
    }
)
"""Codes of refusals that may end without a change of the request: what is in use becomes free, or what is
missing comes."""
PERMANENT = frozenset(
    {
        "JournalDamaged",
        "JournalGone",
        "MonitorMisused",
        "RecordUnreadable",
        "SocketFailed",
        "StepKindUnknown",
    }
)
"""Codes of failures that another try does not end."""


class NodeError(Exception):
    """Why something could not be done for one claim, device or machine; the text is a sentence for people."""

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        """``code``: CamelCase and stable, such as ``DeviceInUse``. ``retryable``: the same request may succeed later
        without a change of the request. It belongs to the code: a place passes it only where it differs."""
        super().__init__(message)
        self.code = code
        self.retryable = retryable

    @property
    def message(self) -> str:
        return str(self)


class Denied(NodeError):
    """The answer is no, and nothing was changed: a rule, another owner, the guest or the hypervisor refuses."""

    def __init__(self, code: str, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(code, message, retryable=code in TRANSIENT if retryable is None else retryable)


class Failed(NodeError):
    """It was tried and did not work. What had been done is undone, or the message says what is left."""

    def __init__(self, code: str, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(code, message, retryable=code not in PERMANENT if retryable is None else retryable)


class VfsRefused(Failed):
    """The kernel refused to make the VFs of a port, and will refuse each time until something is different."""

    def __init__(self, error: Failed, port: str, driver: str, count: int, reason: str) -> None:
        """``error``: what the kernel said. ``port``: as the name of a device. ``driver``, ``count``: with what, and how
        many VFs, it was tried. ``reason``: why not, and what to do."""
        super().__init__(
            error.code, f"{error.message}. Or release the claim (devalloc release): it gets another device"
        )
        self.port, self.driver, self.count, self.reason = port, driver, count, reason


class Unknown(NodeError):
    """It is unknown whether it happened: no answer before the deadline. The journal keeps it until it is known."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message, retryable=True)


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the first of what went wrong, if anything did, and log the others: a caller handles one error."""
    for error in errors[1:]:
        is_expected = isinstance(error, NodeError | OSError)
        log.error("%s", error, exc_info=None if is_expected else error)
    if errors:
        raise errors[0]
