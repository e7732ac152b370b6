"""Validation of manifests: report every problem of a document, with its path.

- ``errors``: run the model, and turn its errors into messages
- ``lenient``: read spellings that are not the API's but have a clear meaning, and replace invalid parts, so that one
  run finds the remaining errors too
- ``schema``: the fields of a model and their types
"""
