"""Which version of devalloc this is: the package, the images and the chart have theirs from here."""

from __future__ import annotations

VERSION = "0.2.0"
