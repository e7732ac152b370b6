"""Bandwidth in bytes per second, out of bits (``10Gbps``, decimal) or bytes (``100MBps``, ``1GB/s``, binary).

===================  ==================================  =======================================================
form                 unit                                example
===================  ==================================  =======================================================
``N[k|m|g]bps``      bits per second; 10^3, 10^6, 10^9   ``100Mbps`` is 12,500,000
``N<size>Bps``       bytes per second; powers of 1024    ``100MBps`` is 104,857,600
``N<size>/s``        the same                            ``1GiB/s`` is 1,073,741,824
``N<size>``          the same                            ``5 MB`` is 5,242,880
===================  ==================================  =======================================================

The case of the B decides between bits and bytes of a rate, and a plain size is bytes in any case (``100mb``). Where it
leaves that open (``1GBPS``, ``100Mb``, ``100mb/s``) the text is refused.
"""

from __future__ import annotations

import re

from devalloc.inventory.capacity.sizes import AmountError, check_range, parse_size, quote_text, strip_amount

_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_NUMBER = re.compile(r"\+?[0-9]{1,32}", re.ASCII)
_AMBIGUOUS = re.compile(r"[0-9]+\s*(?:[KMGTPE]b(?:/s)?|[kmgtpe]?b/s)", re.ASCII)
"""A small b: megabits to who writes carefully, megabytes to who does not."""
_ADVICE = "write bits as 100Mbps or 10Gbps, bytes as 100MBps or 100MB/s"


def parse_bandwidth(text: str) -> int:
    """Bytes per second; what is less than a byte of a number of bits is dropped.

    Raises AmountError for what is empty, negative, no number, ambiguous or more than 2^63 - 1.
    """
    amount = strip_amount(text)
    ending = amount[-3:]
    if ending.lower() == "bps" and ending not in ("bps", "Bps"):
        raise AmountError(f"{quote_text(text)} may be bits or bytes: {_ADVICE}")
    if ending == "bps":
        return check_range(_bits(amount[:-3].strip(), text) // 8, text)
    if _AMBIGUOUS.fullmatch(amount) is not None:
        raise AmountError(f"{quote_text(text)} may be bits or bytes: {_ADVICE}")
    size = amount.removesuffix("/s") if ending != "Bps" else amount[:-2]
    try:
        return parse_size(size)
    except AmountError as error:
        raise AmountError(f"invalid bandwidth {quote_text(text)}: parse as bytes: {error} ({_ADVICE})") from None


def _bits(amount: str, text: str) -> int:
    unit = amount[-1:].lower()
    number = amount[:-1].strip() if unit in ("k", "m", "g") else amount
    if _NUMBER.fullmatch(number) is None:
        advice = "must not be negative" if number.startswith("-") else f"whole numbers only; {_ADVICE}"
        raise AmountError(f"invalid bandwidth {quote_text(text)}: invalid number: {number.lower()[:20]} ({advice})")
    return int(number) * _BITS[unit if unit in _BITS else ""]
