"""The one place the version stands."""

__version__ = "0.2.0.dev0"
