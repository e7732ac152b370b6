"""``devalloc top``: the fleet at a glance, live."""

from __future__ import annotations

import sys
import time

from devalloc.cli.keys import Keys, pressed_keys
from devalloc.cli.options.places import StoreTarget, current_namespace
from devalloc.cli.render.fleet import overview_json, print_overview
from devalloc.cli.render.output import print_content
from devalloc.cli.render.top_screen import DrawTop, TopScreen, live_screen
from devalloc.cli.target import (
    explain_waiting,
    missing_controller_note,
    open_readable_target,
    silence_note,
    unanswered_claims_note,
    unanswered_note,
    unserved_note,
)
from devalloc.store import Store
from devalloc.usage.overview.cache import OverviewCache

_ASKING = ("DeviceClaim", "VirtualMachine")
MIN_SECONDS = 1.0
"""Between two looks at the store, whatever the interval."""


def top(once: bool, interval: float, namespace: str | None, output: str, place: StoreTarget) -> int:
    own = namespace or (current_namespace(place.kubeconfig) if place.is_cluster else None) or "default"
    with open_readable_target(place, own) as source:
        explain_waiting(source)
        sight = OverviewCache(
            source,
            source if place.is_cluster else None,
            namespace=namespace,
            remarks=lambda: "; ".join(filter(None, (_silence(source), unserved_note(source)))),
            unanswered=lambda: unanswered_claims_note(source),
        )
        if output in ("json", "yaml"):
            print_content(overview_json(sight.latest().overview), output)
        elif once or not sys.stdout.isatty():
            print_overview(sight.latest().overview, wide=output == "wide")
        else:
            with pressed_keys() as keys, live_screen() as draw:
                _show(TopScreen(wide=output == "wide", has_keys=keys.is_there), sight, keys, draw, interval)
    return 0


def _silence(store: Store) -> str:
    """As ``silence_note``; on a cluster also if everything has an answer."""
    if unanswered_note(store):
        return silence_note(store, store.list(_ASKING).objects)
    return missing_controller_note(store)


def _show(screen: TopScreen, sight: OverviewCache, keys: Keys, draw: DrawTop, interval: float) -> None:
    """Draw at every interval and after every key, until one ends it."""
    while True:
        draw(screen, sight)
        ends = time.monotonic() + max(interval, MIN_SECONDS)
        while (left := ends - time.monotonic()) > 0:
            key = keys.next(left)
            if key is not None:
                if not screen.press(key):
                    return
                break
