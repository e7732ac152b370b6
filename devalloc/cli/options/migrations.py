"""Options for migrations of machines, of `devalloc up` and of a cluster's controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from devalloc.settings import parse_duration, parse_interval, setting

if TYPE_CHECKING:
    from devalloc.controller.reconcile.vm_scheduling.migrations import MigrationLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationOptions:
    """Migrations of machines that run."""

    deadline: float = setting(
        "How long after the choice of its target a migration is withdrawn, whatever the plugins of its nodes do.",
        flag="--migration-deadline",
        type=parse_interval,
        default="1h",
        metavar="DURATION",
        env="DEVALLOC_MIGRATION_DEADLINE",
    )
    ttl: float = setting(
        "How long migrations remain after their end.",
        flag="--migration-ttl",
        type=parse_duration,
        default="1h",
        metavar="DURATION",
        env="DEVALLOC_MIGRATION_TTL",
    )

    @property
    def limits(self) -> MigrationLimits:
        from devalloc.controller.reconcile.vm_scheduling.migrations import MigrationLimits

        return MigrationLimits(timeout=self.deadline, ttl=self.ttl)


DEFAULT_MIGRATIONS = MigrationOptions()
"""If another process runs the controller."""
