"""The messages of the scaling protocols, decoded and encoded with every check that needs nothing but the message."""
