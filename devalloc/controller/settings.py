"""What an administrator sets of the controller, wherever it runs."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.settings import parse_duration, parse_interval, setting


@dataclass(frozen=True, slots=True)
class MigrationLimits:
    """Migrations of machines that run.

    Times are in seconds.
    """

    timeout: float = setting(
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


DEFAULT_MIGRATION_LIMITS = MigrationLimits()
"""Those of another process that runs the controller, as far as is known."""
