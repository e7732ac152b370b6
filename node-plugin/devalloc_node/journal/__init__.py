"""The journal: what the plugin is about to change on the host and for whom, on disk before it does."""

from devalloc_node.journal.protocol import Journal
from devalloc_node.journal.records import USE, ClaimRecord, ClaimState, Holding, StepRecord, Taken, Withheld
from devalloc_node.journal.sqlite import SQLiteJournal, open_journal

__all__ = [
    "USE",
    "ClaimRecord",
    "ClaimState",
    "Holding",
    "Journal",
    "SQLiteJournal",
    "StepRecord",
    "Taken",
    "Withheld",
    "open_journal",
]
