"""The picture of a run that ``scaling_record`` recorded (docs/scaling-timeline.json): what was said and done, and when.

A plain function of the record, so that the picture in docs can be held against it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""An event as JSON; ``at`` in seconds since the beginning."""
Series = list[tuple[float, float]]
"""Seconds, and a value."""

DOCS = Path(__file__).parents[2] / "docs"
DATA, PICTURE = DOCS / "scaling-timeline.json", DOCS / "scaling-timeline.svg"
WIDTH, LEFT, RIGHT = 960, 138, 154
GIB = float(1 << 30)
PANELS = (("load", 92, 70), ("CPUs", 192, 70), ("memory, GiB", 292, 92))
"""Name, top and height."""
LANES, LANE = 416, 24
MARKS = {
    "asked": (0, "amber", 4, "asked"),
    "permitted": (0, "amber", 62, "given"),
    "told": (2, "blue", 4, "informed"),
    "denied": (2, "red", 50, "no"),
    "agreed": (2, "green", 88, "yes"),
}
"""What is said: in which lane, its colour, and its place and words in the legend."""
ZOOM, ZOOM_ROW = 570, 22
STYLE = """
    text { fill: #1d2733; font-size: 12px } .quiet { fill: #5a6a7e } .title { font-size: 17px; font-weight: 600 }
    .head { font-weight: 600; font-size: 13px }
    .frame { stroke: #d5dce6; stroke-width: 1; fill: none } .phase { fill: #f2f5f9 } .phase.other { fill: #ffffff00 }
    .line { fill: none; stroke-width: 2; stroke-linejoin: round }
    .blue { stroke: #2f6fc4; fill: #2f6fc4 } .amber { stroke: #b8730a; fill: #b8730a }
    .grey { stroke: #6b7a8f; fill: #6b7a8f } .green { stroke: #23854a; fill: #23854a } .red { stroke: #c2362b; fill: #c2362b }
    .line.blue, .line.amber, .line.grey, .line.green { fill: none } text.blue, text.amber, text.grey, text.green, text.red { stroke: none }
    .dots { stroke-dasharray: 1.5 3.5; stroke-linecap: round } .thin { stroke-width: 1.5 }
    .area.blue, .area.green { stroke: none; fill-opacity: .16 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e8eef6 } .quiet { fill: #a3b2c6 } .frame { stroke: #35445a } .phase { fill: #1a2433 }
      .blue { stroke: #6ea8f5; fill: #6ea8f5 } .amber { stroke: #e5a740; fill: #e5a740 } .grey { stroke: #9fb0c6; fill: #9fb0c6 }
      .green { stroke: #5fce8b; fill: #5fce8b } .red { stroke: #ff8278; fill: #ff8278 }
    }
"""  # noqa: E501
ABOUT = (
    "A machine follows its guest: load rises, more is asked for, permitted and plugged, and the guest is informed; "
    "load falls, the monitor denies while memory is in use, then agrees, and all is given back, with a disk in use "
    "throughout"
)


def svg(record: dict[str, Any]) -> str:
    """``record``: ``caption`` (lines of text) and ``events``."""
    return "\n".join(_Picture(record["events"], record["caption"]).lines()) + "\n"


def save(events: Sequence[Row], versions: str) -> None:
    """Write the record and its picture into docs."""
    caption = (
        f"Recorded on {datetime.now(UTC):%Y-%m-%d} by `make timeline`: {versions};",
        f"the host has {os.cpu_count()} CPUs ({_cpu()}). Messages are read off the wire,",
        "what QEMU has is from its own trace, and what is wanted from the machine's status.",
    )
    rows = ",\n  ".join(json.dumps(event) for event in events)
    DATA.write_text(f'{{\n "caption": {json.dumps(caption)},\n "events": [\n  {rows}\n ]\n}}\n')
    PICTURE.write_text(svg({"caption": caption, "events": events}))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")


class _Picture:
    def __init__(self, events: Sequence[Row], caption: Sequence[str]) -> None:
        self._events, self._caption = events, caption
        self._end = max(event["at"] for event in events) * 1.01
        self._most = max(event["cpus"] for event in events if event["what"] == "has" and "cpus" in event)
        self._phases = [event for event in events if event["what"] == "phase"]

    def lines(self) -> Iterator[str]:
        up, down = self._way_up(), self._way_down()
        height = ZOOM + 34 + ZOOM_ROW * max(len(up), len(down)) + 12 + 17 * len(self._caption) + 8
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif" aria-label="{ABOUT}">'
        )
        yield f"  <style>{STYLE}  </style>"
        yield _text(20, 32, "A machine follows its guest", "title")
        yield from self._background()
        yield from self._load()
        yield from self._cpus()
        yield from self._memory()
        yield from self._lanes()
        yield from _zoomed(20, 450, "The last step up", up)
        yield from _zoomed(490, 450, "The last step down", down)
        for number, line in enumerate(self._caption):
            yield _text(20, height - 17 * (len(self._caption) - number) + 5, line, "quiet")
        yield "</svg>"

    def _x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / self._end

    def _background(self) -> Iterator[str]:
        ends = [*(phase["at"] for phase in self._phases[1:]), self._end]
        bottom = LANES + 4 * LANE + 4
        for number, (phase, end) in enumerate(zip(self._phases, ends, strict=True)):
            x, width = self._x(phase["at"]), self._x(end) - self._x(phase["at"])
            kind = "phase" if number % 2 else "phase other"
            yield f'  <rect class="{kind}" x="{x:.1f}" y="54" width="{width:.1f}" height="{bottom - 54}"/>'
        for phase in self._phases:
            yield _text(self._x(phase["at"]) + 6, 70, phase["more"]["name"], "quiet")
        step = next(step for step in (10, 20, 30, 60, 120) if self._end / step <= 12)
        for second in range(0, int(self._end) + 1, step):
            yield f'  <path class="frame" d="M{self._x(second):.1f} {bottom} v5"/>'
            yield _text(self._x(second), bottom + 18, f"{second} s", "quiet", "middle")
        yield f'  <path class="frame" d="M{LEFT} {bottom} H{WIDTH - RIGHT}"/>'

    def _axis(self, panel: int, most: float, ticks: Sequence[float]) -> Iterator[str]:
        name, top, height = PANELS[panel]
        yield _text(20, top + 14, name, "head")
        for tick in ticks:
            y = top + height * (1 - tick / most)
            yield f'  <path class="frame" d="M{LEFT} {y:.1f} H{WIDTH - RIGHT}"/>'
            yield _text(LEFT - 8, y + 4, f"{tick:g}", "quiet", "end")

    def _points(self, panel: int, most: float, values: Series, steps: bool, lift: float) -> str:
        _, top, height = PANELS[panel]
        path = ""
        for at, value in values:
            x, y = self._x(at), top + height * (1 - value / most) - lift
            path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}"
        return path + (f"H{self._x(self._end):.1f}" if steps else "")

    def _drawn(
        self, panel: int, most: float, values: Series, kind: str, *, steps: bool = True, lift: float = 0
    ) -> Iterator[str]:
        path = self._points(panel, most, values, steps, lift)
        _, top, height = PANELS[panel]
        if "fill" in kind:
            yield f'  <path class="area {kind}" d="{path}V{top + height}H{self._x(values[0][0]):.1f}Z"/>'
        yield f'  <path class="line {kind}" d="{path}"/>'

    def _series(self, what: str, amount: str) -> Series:
        unit = GIB if amount == "memory" else 1.0
        return [
            (event["at"], event[amount] / unit) for event in self._events if event["what"] == what and amount in event
        ]

    def _load(self) -> Iterator[str]:
        gauges = [event for event in self._events if event["what"] == "load"]
        values = [(event["at"], event["more"]["host_load1"]) for event in gauges]
        most = max(2.0, float(int(max(value for _, value in values)) + 1))
        yield from self._axis(0, most, [0, most / 2, most])
        yield from self._drawn(0, most, values, "green fill", steps=False)
        yield _text(WIDTH - RIGHT + 10, PANELS[0][1] + 14, "load of 1 minute", "green")
        yield _text(WIDTH - RIGHT + 10, PANELS[0][1] + 30, "as the agent reads it", "quiet")

    def _cpus(self) -> Iterator[str]:
        most = self._most + 0.5
        yield from self._axis(1, most, range(int(self._most) + 1))
        yield from self._drawn(1, most, [(0, 1), *self._series("has", "cpus")], "blue fill")
        yield from self._drawn(1, most, self._series("permitted", "cpus"), "amber thin", lift=3)
        yield from self._drawn(1, most, self._wanted("cpus"), "grey dots", lift=6)
        for number, (kind, words) in enumerate((("grey", "wanted"), ("amber", "permitted"), ("blue", "QEMU has"))):
            yield _text(WIDTH - RIGHT + 10, PANELS[1][1] + 14 + 17 * number, words, kind)

    def _memory(self) -> Iterator[str]:
        most = self._most + 0.4
        yield from self._axis(2, most, range(int(self._most) + 1))
        yield from self._drawn(2, most, [(0, 1), *self._series("has", "memory")], "blue fill")
        yield from self._drawn(2, most, self._series("permitted", "memory"), "amber thin", lift=3)
        yield from self._drawn(2, most, self._wanted("memory"), "grey dots", lift=6)
        gauges = [(event["at"], event["more"]) for event in self._events if event["what"] == "load"]
        used = [
            (at, (all_["host_memory_total_bytes"] - all_["host_memory_available_bytes"]) / GIB) for at, all_ in gauges
        ]
        yield from self._drawn(2, most, used, "green thin", steps=False)
        words = (("grey", "wanted"), ("amber", "permitted"), ("blue", "QEMU has"), ("green", "the guest uses"))
        for number, (kind, text) in enumerate(words):
            yield _text(WIDTH - RIGHT + 10, PANELS[2][1] + 14 + 17 * number, text, kind)

    def _wanted(self, amount: str) -> Series:
        """By its status."""
        unit = GIB if amount == "memory" else 1.0
        wanted = [
            (e["at"], e["more"]["wanted"]) for e in self._events if e["what"] == "status" and "wanted" in e["more"]
        ]
        return [(at, amounts[amount] / unit) for at, amounts in wanted]

    def _lanes(self) -> Iterator[str]:
        right = WIDTH - RIGHT + 10
        for number, name in enumerate(("permits", "QEMU", "guest monitor", "NVMe disk")):
            yield _text(20, _lane(number) + 4, name, "head")
            yield f'  <path class="frame" d="M{LEFT} {_lane(number)} H{WIDTH - RIGHT}"/>'
        for begun, ended in _changes(self._events):
            x, width = self._x(begun), max(2.0, self._x(ended) - self._x(begun))
            yield f'  <rect class="blue" x="{x:.1f}" y="{_lane(1) - 4}" width="{width:.1f}" height="8" rx="2"/>'
        for event in self._events:
            if event["what"] in MARKS:
                lane, colour, _, _ = MARKS[event["what"]]
                yield _mark(self._x(event["at"]), _lane(lane), event["what"], colour)
        for what, (lane, colour, offset, word) in MARKS.items():
            yield _mark(right + offset, _lane(lane), what, colour)
            yield _text(right + offset + 9, _lane(lane) + 4, word, "quiet")
        yield _text(right, _lane(1) + 4, "plugs or unplugs", "quiet")
        seen = [event for event in self._events if event["what"] == "device"]
        begun, ended = (f"{self._x(seen[which]['at']):.1f}" for which in (0, -1))
        yield f'  <path class="line green" d="M{begun} {_lane(3)} H{ended}"/>'
        for event in seen:
            yield _mark(self._x(event["at"]), _lane(3), "agreed", "green")
        yield _text(right, _lane(3) + 4, f"{seen[-1]['more']['writes']} writes, read back", "quiet")

    def _way_up(self) -> list[tuple[str, str, float, float]]:
        granted = next(event for event in self._events if event["what"] == "told" and event["cpus"] == self._most)
        request = next(e for e in self._events if e["what"] == "asked" and e["cpus"] == granted["cpus"])
        load = [event for event in self._events if event["what"] == "load" and event["at"] < request["at"]][-1]
        heard = self._next("heard", granted["at"])
        return [
            (f"load {load['more']['host_load1']:.2f} is read", "green", load["at"], load["at"]),
            ("permit asked for", "amber", request["at"], request["at"]),
            ("permit given", "amber", *2 * (self._next("permitted", request["at"])["at"],)),
            ("memory plugged", "blue", *self._span("plugging", "memory", request["at"], granted["at"])),
            ("CPU plugged", "blue", *self._span("plugging", "cpus", request["at"], granted["at"])),
            ("monitor informed, agrees", "green", granted["at"], heard["at"]),
        ]

    def _way_down(self) -> list[tuple[str, str, float, float]]:
        agreed = [event for event in self._events if event["what"] == "agreed"][-1]
        may = [event for event in self._events if event["what"] == "may" and event["at"] < agreed["at"]][-1]
        request = next(
            e for e in self._events if e["what"] == "asked" and e["at"] > agreed["at"] and e["cpus"] == agreed["cpus"]
        )
        return [
            ("monitor asked", "green", may["at"], may["at"]),
            ("monitor agrees", "green", agreed["at"], agreed["at"]),
            ("memory unplugged", "blue", *self._span("unplugging", "memory", agreed["at"], request["at"])),
            ("CPU unplugged, last", "blue", *self._span("unplugging", "cpus", agreed["at"], request["at"])),
            ("less asked for", "amber", request["at"], request["at"]),
            ("permit lowered", "amber", *2 * (self._next("permitted", request["at"])["at"],)),
        ]

    def _next(self, what: str, after: float) -> Row:
        return next(event for event in self._events if event["what"] == what and event["at"] >= after)

    def _span(self, what: str, amount: str, after: float, before: float) -> tuple[float, float]:
        inside = [e for e in self._events if after <= e["at"] <= before and amount in e]
        begun = next(event["at"] for event in inside if event["what"] == what)
        return begun, [event["at"] for event in inside if event["what"] == "has"][-1]


def _changes(events: Sequence[Row]) -> Iterator[tuple[float, float]]:
    """From when to when QEMU changes something."""
    begun, last = None, 0.0
    for event in events:
        if event["what"] in ("plugging", "unplugging") and begun is None:
            begun = last = event["at"]
        elif event["what"] == "has":
            last = event["at"]
        elif event["what"] in ("told", "asked", "denied") and begun is not None:
            yield begun, last
            begun = None


def _zoomed(x: float, width: float, name: str, rows: Sequence[tuple[str, str, float, float]]) -> Iterator[str]:
    """Rows (words, colour, from, to) one below the other, each as long after the first as it came."""
    begun, ended = rows[0][2], max(row[3] for row in rows)
    total = max(ended - begun, 0.001)
    label, right = 178, 62
    yield _text(x, ZOOM + 16, name, "head")
    for number, (words, colour, start, end) in enumerate(rows):
        y = ZOOM + 40 + ZOOM_ROW * number
        first, last = (x + label + (width - label - right) * (at - begun) / total for at in (start, end))
        yield f'  <path class="frame" d="M{x + label} {y} H{x + width - right + 6}"/>'
        yield _text(x, y + 4, words)
        if last - first < 4:
            yield f'  <circle class="{colour}" cx="{first:.1f}" cy="{y}" r="4.5"/>'
        else:
            width_ = f"{last - first:.1f}"
            yield f'  <rect class="{colour}" x="{first:.1f}" y="{y - 5}" width="{width_}" height="10" rx="2"/>'
        yield _text(x + width, y + 4, f"{(end - begun):.3f} s", "quiet", "end")


def _lane(number: int) -> float:
    """Its middle."""
    return LANES + LANE * (number + 0.5)


def _mark(x: float, y: float, what: str, colour: str) -> str:
    shape = {
        "asked": f'<circle class="line thin {colour}" cx="{x:.1f}" cy="{y}" r="5.5"/>',
        "permitted": f'<circle class="{colour}" cx="{x:.1f}" cy="{y}" r="2.8"/>',
        "told": f'<path class="{colour}" d="M{x - 4:.1f} {y + 4} h8 l-4 -8 z"/>',
        "denied": f'<path class="line {colour}" d="M{x - 4:.1f} {y - 4} l8 8 m0 -8 l-8 8"/>',
        "agreed": f'<circle class="{colour}" cx="{x:.1f}" cy="{y}" r="4"/>',
    }
    return f"  {shape[what]}"


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'  <text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
