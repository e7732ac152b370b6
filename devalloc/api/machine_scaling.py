"""What scales a VirtualMachine: its guest's load (``spec.scaling``: the guest's address and protocol, and how goals are
computed), or a controller (``spec.runner``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from devalloc.api.fields import RELATED, AmountField, ApiModel, Positive, Unit, quote_value, raise_faults
from devalloc.api.quantity import NANO, Quantity

MAX_MINUTES = 24 * 60
"""Guests report one working set per minute, for at most a day."""


def _address(value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        return ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f"must be an IPv4 or IPv6 address, not {quote_value(value)}") from None


def _guest_address(value: object) -> object:
    address = _address(value)
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError(f"must be an address that only a guest can have, not {address}")
    return str(address)


def _own_address(value: object) -> object:
    address = _address(value)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"must be an address of the node, not {address}")
    return str(address)


OwnAddress = Annotated[str, BeforeValidator(_own_address), WithJsonSchema({"type": "string", "maxLength": 45})]
GuestAddress = Annotated[str, BeforeValidator(_guest_address), WithJsonSchema({"type": "string", "maxLength": 45})]
Port = Annotated[int, Field(ge=1, le=65535)]


def _between_zero_and(most: int | None) -> Callable[[Quantity], Quantity]:
    def check(amount: Quantity) -> Quantity:
        if amount.nano <= 0 or (most is not None and amount.nano >= most * NANO):
            bound = "" if most is None else f" and less than {most}"
            raise ValueError(f"must be more than 0{bound}, but is {amount}")
        return amount

    return check


Fraction = Annotated[Positive, AfterValidator(_between_zero_and(1))]


class MachineScaling(ApiModel):
    """CPUs and memory follow the guest's load, between min and max, as far as permits allow. The guest runs
    ``devalloc guest-monitor``, or another monitor and exporter with the same protocols.

    Fields without a value take it from the node's settings."""

    address: GuestAddress
    """The address at which the node reaches the guest."""
    protocol: Literal["monitor", "informant"] = "monitor"
    """The guest's protocol: that of the guest monitor, or that of informants, which older guests run. An informant also
    sends requests to the node, so it must be able to reach it."""
    monitor_port: Port = 10301
    """The port of the guest's monitor or informant. It must agree before memory is removed, and can request more."""
    metrics_port: Port = 9100
    """The port of the guest's metrics: load and memory. An informant names this port itself."""
    load_average_fraction_target: Annotated[Positive, AfterValidator(_between_zero_and(2))] | None = None
    """The load average to aim for, as a fraction of its CPUs, below 2, such as 900m."""
    memory_usage_fraction_target: Fraction | None = None
    """The memory usage to aim for, as a fraction of its memory, below 1."""
    memory_total_fraction_target: Fraction | None = None
    """The sum of memory usage and the cached part of its cache's working set to aim for, as a fraction of its memory,
    below 1."""
    enable_lfc_metrics: Annotated[bool | None, Field(alias="enableLFCMetrics")] = None
    """Whether to include its local file cache (LFC), whose metrics are then read."""
    lfc_metrics_port: Port = 9499
    """The port of the metrics of its local file cache."""
    lfc_to_memory_ratio: Annotated[Positive, AfterValidator(_between_zero_and(None))] | None = None
    """The fraction of its memory that its local file cache may use."""
    lfc_window_size_minutes: Annotated[int, Field(ge=2, le=MAX_MINUTES), Unit("minutes")] | None = None
    """The width of the windows for comparing the growth of the cache's working set."""
    lfc_min_wait_before_downscale_minutes: Annotated[int, Field(ge=1, le=MAX_MINUTES), Unit("minutes")] | None = None
    """The minimum time for which a working set counts; at least the window, if windows are compared."""
    lfc_use_largest_window: bool | None = None
    """Use the working set of the longest known time, instead of comparing windows."""
    cpu_stable_zone_ratio: AmountField | None = None
    """Ignore the load over 1 minute while it differs from the load over 5 minutes by at most this fraction."""
    cpu_mixed_zone_ratio: AmountField | None = None
    """The range beyond the stable zone, as a fraction of the load over 5 minutes, in which the two are mixed."""

    @model_validator(mode="after")
    def _window_within_wait(self) -> MachineScaling:
        window, wait = self.lfc_window_size_minutes, self.lfc_min_wait_before_downscale_minutes
        if window is not None and wait is not None and wait < window and not self.lfc_use_largest_window:
            what = f"must be at least lfcWindowSizeMinutes ({window}), but is {wait}"
            raise_faults([(("lfcMinWaitBeforeDownscaleMinutes",), what)], RELATED)
        return self


class MachineRunner(ApiModel):
    """A controller sets the CPU time of its CPUs with the protocol of runners: ``/cpu_change`` and ``/cpu_current``."""

    address: OwnAddress
    """An address of the node, for this machine alone, in a network that the node's admin lists. The runner obeys
    everyone who can connect."""
    port: Port = 25183
    """The port of the protocol at that address."""
