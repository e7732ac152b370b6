"""Between which amounts a machine is scaled."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.scaling.resources import Resources

ANNOTATION = "autoscaling.neon.tech/bounds"
"""The annotation with a machine's bounds that peers read; devalloc reads ``spec`` instead."""


@dataclass(frozen=True, slots=True)
class ScalingBounds:
    min: Resources
    max: Resources
