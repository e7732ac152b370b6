"""The journal: what the plugin is about to change on the host and for whom, on disk before it does.

- ``protocol``: what the engine needs of a journal, and what it holds
- ``sqlite``, ``schema``: the file, and copies of it; ``state_folder``: its folder, and whether it is whole
- ``audit_log``: who changed what, when and for which claim
"""

from devalloc_node.journal.protocol import (
    USE,
    ClaimRecord,
    ClaimState,
    HeldByOther,
    HeldKey,
    Journal,
    StepRecord,
    WithheldDevice,
)
from devalloc_node.journal.sqlite import SQLiteJournal, open_journal

__all__ = [
    "USE",
    "ClaimRecord",
    "ClaimState",
    "HeldByOther",
    "HeldKey",
    "Journal",
    "SQLiteJournal",
    "StepRecord",
    "WithheldDevice",
    "open_journal",
]
