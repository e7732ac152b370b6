"""What an administrator sets of the controller, wherever it runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from devalloc.settings import (
    EXISTING_FILE,
    BadSetting,
    Whole,
    given_options,
    parse_duration,
    parse_interval,
    setting,
)


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


@dataclass(frozen=True, slots=True)
class FencingSettings:
    """When a program powers off lost nodes.

    Times are in seconds.
    """

    command: Path | None = setting(
        "Program that powers off a lost node: a Node that has machines or claims, and whose condition Ready has been "
        "Unknown for --fencing-after. It gets the node's name as its argument and in DEVALLOC_NODE. If it ends with 0, "
        "the node is fenced, as with `devalloc fence`; otherwise it is called again later.",
        flag="--fencing-command",
        type=EXISTING_FILE,
        metavar="PROGRAM",
        unset="no node is fenced automatically",
    )
    after: float = setting(
        "How long a node must be lost before --fencing-command is called.",
        flag="--fencing-after",
        type=parse_duration,
        default="5m",
        metavar="DURATION",
    )
    timeout: float = setting(
        "How long --fencing-command may take.",
        flag="--fencing-timeout",
        type=parse_duration,
        default="2m",
        metavar="DURATION",
    )
    """Then it is killed, which counts as a failure."""
    one_in: int = setting(
        "One in this number of nodes may be lost or fenced at the same time. If more are, the controller does not call "
        "--fencing-command, because a network fault must not power off the fleet.",
        flag="--fencing-one-in",
        type=Whole(1),
        default=5,
        metavar="NUMBER",
    )
    """One in any case, if others are Ready."""

    def check(self) -> None:
        """Raises BadSetting."""
        if self.command is None:
            if given := given_options(self):
                raise BadSetting(given[0], "needs --fencing-command")
        elif not os.access(self.command, os.X_OK):
            raise BadSetting("--fencing-command", f"{self.command} is not executable: chmod +x {self.command}")
