"""Who decides what a VirtualMachine has: its guest (``spec.scaling``: where that is, what it speaks, how goals are
computed), or a controller (``spec.runner``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from devalloc.api.fields import RELATED, AmountField, ApiModel, Positive, refuse, shown
from devalloc.api.quantity import NANO, Quantity

MAX_MINUTES = 24 * 60
"""Working sets are told one a minute, for a day at most."""


def _address(value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        return ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f"must be an IPv4 or IPv6 address, not {shown(value)}") from None


def _guest_address(value: object) -> object:
    address = _address(value)
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError(f"must be an address that only a guest can have, and {address} is none")
    return str(address)


def _own_address(value: object) -> object:
    address = _address(value)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"must be one address of the node, and {address} is none")
    return str(address)


OwnAddress = Annotated[str, BeforeValidator(_own_address), WithJsonSchema({"type": "string", "maxLength": 45})]
GuestAddress = Annotated[str, BeforeValidator(_guest_address), WithJsonSchema({"type": "string", "maxLength": 45})]
Port = Annotated[int, Field(ge=1, le=65535)]


def _below(most: int | None) -> Callable[[Quantity], Quantity]:
    def check(amount: Quantity) -> Quantity:
        if amount.nano <= 0 or (most is not None and amount.nano >= most * NANO):
            bound = "" if most is None else f" and less than {most}"
            raise ValueError(f"must be more than 0{bound}, and is {amount}")
        return amount

    return check


Fraction = Annotated[Positive, AfterValidator(_below(1))]


class MachineScaling(ApiModel):
    """CPUs and memory follow what the guest does, between min and max, as far as there is a permit for it. The guest
    runs ``devalloc guest-monitor``, or another monitor and exporter that speak the same protocols.

    How goals are computed is as the node's settings have it, for all fields where nothing is said."""

    address: GuestAddress
    """Where the node reaches the guest."""
    protocol: Literal["monitor", "informant"] = "monitor"
    """What the guest speaks: the guest monitor protocol, or that of informants, which older guests have. An informant
    asks the node too, and so has to reach it."""
    monitor_port: Port = 10301
    """Of the guest's monitor, or informant: it is asked before memory goes, and asks for more."""
    metrics_port: Port = 9100
    """Of the guest's gauges: load and memory. An informant says itself which port that is."""
    load_average_fraction_target: Annotated[Positive, AfterValidator(_below(2))] | None = None
    """The part of its CPUs that its load average should come to, below 2, such as 900m."""
    memory_usage_fraction_target: Fraction | None = None
    """The part of its memory that what it uses should come to, below 1."""
    memory_total_fraction_target: Fraction | None = None
    """The part of its memory that what it uses, and what is cached of its cache's working set, should come to, below
    1."""
    enable_lfc_metrics: Annotated[bool | None, Field(alias="enableLFCMetrics")] = None
    """Whether its local file cache (LFC) counts: it is asked for the gauges of that."""
    lfc_metrics_port: Port = 9499
    """Of the gauges of its local file cache."""
    lfc_to_memory_ratio: Annotated[Positive, AfterValidator(_below(None))] | None = None
    """The part of its memory that its local file cache may take."""
    lfc_window_size_minutes: Annotated[int, Field(ge=2, le=MAX_MINUTES)] | None = None
    """The width of the windows in which growth of the cache's working set is compared."""
    lfc_min_wait_before_downscale_minutes: Annotated[int, Field(ge=1, le=MAX_MINUTES)] | None = None
    """How long a working set counts at least; not less than the window, where windows are compared."""
    lfc_use_largest_window: bool | None = None
    """The working set is that of the longest time that is known: windows are not compared."""
    cpu_stable_zone_ratio: AmountField | None = None
    """Up to this part of the load over 5 minutes, another one over 1 minute does not count."""
    cpu_mixed_zone_ratio: AmountField | None = None
    """The part of the load over 5 minutes, beyond the stable zone, over which the two are mixed."""

    @model_validator(mode="after")
    def _window_within_wait(self) -> MachineScaling:
        window, wait = self.lfc_window_size_minutes, self.lfc_min_wait_before_downscale_minutes
        if window is not None and wait is not None and wait < window and not self.lfc_use_largest_window:
            what = f"must be at least lfcWindowSizeMinutes, which is {window}, and is {wait}"
            refuse([(("lfcMinWaitBeforeDownscaleMinutes",), what)], RELATED)
        return self


class MachineRunner(ApiModel):
    """A controller decides how much time its CPUs get, by the protocol of runners: ``/cpu_change`` and
    ``/cpu_current``."""

    address: OwnAddress
    """Of the node, for this machine alone, in a network that the node's admin lists: whoever gets there is obeyed."""
    port: Port = 25183
