"""The verbs of the command by subject, with their options and helps; it imports only what a help needs.

A verb is a function of its name under ``@verb``, with ``_`` for ``-``. ``devalloc.cli.main`` lists the modules.
"""
