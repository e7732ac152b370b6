"""The pool of warm machine setups: a network namespace, a TAP interface and a folder each, made before it is asked for.

One way: ``setup`` (what one is) ─► ``parts`` (making and removing each of its parts on the host, over ``network``) ─►
``build`` (a whole one: intent first, undone from whatever is there) ─► ``pool`` (who has which; ``keeping`` fills
it) ─► ``view`` and the service. ``records`` is what outlives a killed plugin, ``occupants`` who lives in a setup.
Beside it: ``requests`` (replica requests from labels and environment), ``pinning`` (which CPUs a machine gets).
"""
