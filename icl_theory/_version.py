"""The version of the package; all other modules take it from this one."""

__version__ = "0.2.0"
