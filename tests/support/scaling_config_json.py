"""Scaling configurations as decoded JSON, as peers write them."""

from __future__ import annotations

from typing import Any

from devalloc.scaling.config import ScalingConfig, ScalingOverrides, _known_fields
from devalloc.scaling.versions import ProtocolEra


def defaults_to_json(config: ScalingConfig, era: ProtocolEra = ProtocolEra.NEWEST) -> dict[str, Any]:
    """As decoded JSON, with the fields that the era knows."""
    return {field.name: getattr(config, field.attribute) for field in _known_fields(era)}


def overrides_to_json(overrides: ScalingOverrides, era: ProtocolEra = ProtocolEra.NEWEST) -> dict[str, Any]:
    """As decoded JSON: the fields that are set and that the era knows."""
    values = {field.name: getattr(overrides, field.attribute) for field in _known_fields(era)}
    return {name: value for name, value in values.items() if value is not None}
