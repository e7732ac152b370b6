"""``devalloc guest-monitor``: the program inside a machine that scales."""

from __future__ import annotations

from devalloc.cli.command import SettingOption, runs, verb
from devalloc_machines.guest.settings import ABOUT, OPTIONS


@verb("guest-monitor", help=ABOUT)
@runs("devalloc.cli.verbs.guest_monitor")
def guest_monitor() -> None:
    pass


guest_monitor.params[:0] = [
    # As texts: the settings report all problems together.
    SettingOption([each.flag], metavar=each.metavar, default=each.default, help=each.help, usual=each.usual)
    for each in OPTIONS
]
