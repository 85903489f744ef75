"""The version, in a module of its own: whoever needs it must not import the whole API."""

__version__ = "0.1.0"
