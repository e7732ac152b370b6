"""``devalloc loans``."""

from __future__ import annotations

from devalloc.cli.command import verb
from devalloc.cli.options.places import StoreTarget, target_options
from devalloc.cli.target import open_target
from devalloc.cli.terminal import print_line


@verb("loans")
@target_options
def loans(place: StoreTarget) -> None:
    """Show who has devices without a claim."""
    with open_target(place) as store:
        for loan in store.list("Loan").objects:
            lent = "lent" if (loan.get("status") or {}).get("lent") else "asked for"
            print_line(f"{loan['spec']['deviceName']} is {lent}: {loan['spec'].get('borrower', '')}")
