"""Breaking manifests at random, the same way for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

JUNK: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**63,
        2**70,
        "",
        " ",
        "x",
        "1Gi",
        "-1",
        "1.5",
        "nan",
        "10GB",
        "\u0000",
        "\u2028",
        "é",
    ),
    *([], {}, [[]], [{}], {"a": {}}, {"": ""}, ["x"], [None], {"name": "x"}, "x" * 5000),
]

Place = tuple[Any, Any]
"""A container and the key or index in it."""


def places(content: Any) -> list[Place]:
    """Every place of a manifest."""
    slots: list[Place] = []
    stack = [content]
    while stack:
        container = stack.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            slots.append((container, key))
            if isinstance(container[key], (dict, list)):
                stack.append(container[key])
    return slots


def mutated(content: dict[str, Any], random: Random) -> dict[str, Any]:
    """A copy with one to three places changed."""
    result = deepcopy(content)
    for _ in range(random.choice((1, 1, 2, 3))):
        if not (slots := places(result)):
            break
        container, key = random.choice(slots)
        random.choice(_CHANGES)(container, key, random)
    return result


def _junk(container: Any, key: Any, random: Random) -> None:
    container[key] = deepcopy(random.choice(JUNK))


def _remove(container: Any, key: Any, random: Random) -> None:
    del container[key]


def _rename(container: Any, key: Any, random: Random) -> None:
    if isinstance(container, dict):
        letters = list(key)
        if letters:
            at = random.randrange(len(letters))
            letters[at] = random.choice([letters[at].swapcase(), "", letters[at] * 2, "_"])
        container["".join(letters)] = container.pop(key)


def _repeat(container: Any, key: Any, random: Random) -> None:
    if isinstance(container, list):
        container.append(deepcopy(container[key]))
    else:
        container[f"{key}2"] = deepcopy(container[key])


def _wrap(container: Any, key: Any, random: Random) -> None:
    container[key] = random.choice([[container[key]], {"value": container[key]}, {str(key): container[key]}])


def _move(container: Any, key: Any, random: Random) -> None:
    if isinstance(container[key], dict) and isinstance(container, dict):
        container.update(container.pop(key))


def _retype(container: Any, key: Any, random: Random) -> None:
    value = container[key]
    if isinstance(value, str):
        container[key] = random.choice([value.upper(), value + " ", len(value), [value], value.encode().hex() * 20])
    elif isinstance(value, (int, float)):
        container[key] = random.choice([str(value), -value, value + 0.5, value * 10**15])


_CHANGES: list[Callable[[Any, Any, Random], None]] = [_junk, _junk, _remove, _rename, _repeat, _wrap, _move, _retype]


def mutated_text(text: str, random: Random) -> str:
    """The text with one to three slips of the hand."""
    for _ in range(random.choice((1, 1, 2, 3))):
        lines = text.split("\n")
        at = random.randrange(len(lines))
        line = lines[at]
        spot = random.randrange(len(line) + 1)
        slip = random.randrange(8)
        if slip == 0:
            lines[at] = line[:spot] + random.choice(":-[]{}\"'#&*!|>%@`,\t\\é\u0007 ") + line[spot:]
        elif slip == 1:
            lines[at] = line[: max(0, spot - 1)] + line[spot:]
        elif slip == 2:
            lines[at] = " " * random.randrange(1, 4) + line
        elif slip == 3:
            lines[at] = line[random.randrange(1, 3) :]
        elif slip == 4:
            lines.insert(at, line)
        elif slip == 5:
            del lines[at]
        elif slip == 6:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines = [*lines[:at], line[:spot]]
        text = "\n".join(lines)
    return text
