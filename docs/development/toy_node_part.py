"""A part of a node that watches how hot its devices are: an example of ``devalloc_node.parts``.

A package that contains this module registers it in its ``pyproject.toml``, and changes nothing else:

    [project.entry-points."devalloc.node_parts"]
    temperatures = "toy_node_part:Temperatures"
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from devalloc.worker import repeat
from devalloc_node.node import Node
from devalloc_node.parts import Loop, NodePart

log = logging.getLogger(__name__)

HOT = 90.0
"""Degrees Celsius from which on a device is in the log."""
LOOK_SECONDS = 10.0


class Temperatures(NodePart):
    """Exports the temperature of each PCI device, and logs the hot ones."""

    def __init__(self, node: Node) -> None:
        self._sensors = node.settings.root / "sys/bus/pci/devices"

    def warnings(self) -> Iterable[str]:
        if not self._now():
            yield "no PCI device of this host has a sensor, so there are no temperatures"

    def loops(self) -> Sequence[Loop]:
        return [lambda stop: repeat(stop, self._look, LOOK_SECONDS, "cannot read temperatures", expected=(OSError,))]

    def metrics(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("toy_device_celsius", "Temperature of a PCI device.", labels=["function"])
        for function, celsius in self._now().items():
            family.add_metric([function], celsius)
        return [family]

    def _look(self) -> None:
        """Log which devices are hot. Raises OSError."""
        for function, celsius in self._now().items():
            if celsius >= HOT:
                log.warning("device %s has %.0f degrees Celsius; check its cooling", function, celsius)

    def _now(self) -> dict[str, float]:
        """Degrees Celsius, by PCI address."""
        return {path.parents[2].name: _celsius(path) for path in self._sensors.glob("*/hwmon/*/temp1_input")}


def _celsius(path: Path) -> float:
    return int(path.read_text()) / 1000
