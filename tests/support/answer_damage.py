"""Correct answers with one thing made wrong, which a checker must notice."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS
from devalloc.api.quantity import Quantity

Answer = dict[str, Any]


def damaged(claims: list[Answer], random: Random, names: list[str]) -> list[Answer]:
    """The ``claims`` of an answer with one thing changed; perhaps by chance still right.

    `names` are device names to put in place of others.
    """
    claims = deepcopy(claims)
    given = [claim for claim in claims if claim["allocated"] and claim.get("annotations")]
    if not given:
        return claims
    claim = random.choice(given)
    labels = json.loads(claim["annotations"][ALLOCATION_DETAILS])
    entries = claim["allocations"]
    at = random.randrange(len(entries))
    match random.choice(["leave out", "twice", "other device", "other node", "amount", "share", "detail"]):
        case "leave out":
            del entries[at], labels[at]
        case "twice":
            entries.insert(at, deepcopy(entries[at]))
            labels.insert(at, labels[at])
        case "other device":
            entries[at]["deviceName"] = random.choice(names)
        case "other node":
            claim["node"] = random.choice(["n1", "n2", "n3", None])
            claim["annotations"].pop(ALLOCATED_NODE, None)
            if claim["node"]:
                claim["annotations"][ALLOCATED_NODE] = claim["node"]
        case "amount":
            for part in entries[at].get("allocations", [])[:1]:
                change = random.choice([2**30, -(2**30), 1, 5 * 10**8 / 10**9])
                part["allocation"] = str(Quantity(Quantity.parse(part["allocation"]).nano + int(change * 10**9)))
        case "share":
            if entries[at].pop("allocations", None) is None:
                entries[at]["allocations"] = [{"name": "memory", "allocation": "1Gi"}]
        case "detail":
            labels[at] = random.choice(labels)
    claim["annotations"][ALLOCATION_DETAILS] = json.dumps(labels)
    return claims
