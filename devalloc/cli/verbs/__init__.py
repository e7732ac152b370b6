"""The verbs of the command, one module each, which is imported when the verb is used.

A module has the name of its verb, with ``_`` for ``-``, and a function of that name under ``@verb``.
``devalloc.cli.main`` lists the verbs.
"""
