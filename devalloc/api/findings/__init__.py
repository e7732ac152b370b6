"""Why a claim or machine waits, as data, and the sentence that a reader gets of it.

A finding has causes and blockers. Both are JSON: maps with a ``code`` or a ``kind``, numbers and names. No sentence
exists before ``message_of`` is called with its reader, and what the reader may not see is taken out before that
(``visible``). So nothing searches or edits sentences.

A sentence is a cause, then a remedy, in ``MAX_MESSAGE`` characters. Counts, lists and what does not fit are in the
data, which `devalloc explain` shows whole.
"""

from __future__ import annotations

from devalloc.api.findings.data import (
    ADMIN,
    AT_LENGTH,
    BEING_DELETED,
    CAVEATS,
    HOLDERS,
    MAX_MESSAGE,
    Cause,
    Fact,
    Finding,
    Reader,
    claim_ref,
    fact,
    finding_of,
    first_of,
    group_ref,
    member_ref,
    of_owner,
    owner_ref,
    text_fact,
    visible,
    with_refs,
)
from devalloc.api.findings.edits import edit_words
from devalloc.api.findings.rules import ARE_EXCLUDED, Rule, RuleCode, rule, rule_words
from devalloc.api.findings.sentences import as_json, message_of
from devalloc.api.findings.style import agree_verb, count_devices

__all__ = [
    "ADMIN",
    "ARE_EXCLUDED",
    "AT_LENGTH",
    "BEING_DELETED",
    "CAVEATS",
    "HOLDERS",
    "MAX_MESSAGE",
    "Cause",
    "Fact",
    "Finding",
    "Reader",
    "Rule",
    "RuleCode",
    "agree_verb",
    "as_json",
    "claim_ref",
    "count_devices",
    "edit_words",
    "fact",
    "finding_of",
    "first_of",
    "group_ref",
    "member_ref",
    "message_of",
    "of_owner",
    "owner_ref",
    "rule",
    "rule_words",
    "text_fact",
    "visible",
    "with_refs",
]
