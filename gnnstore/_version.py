"""The version, in one place: the build reads it from here, and importing it costs nothing."""

__version__ = "0.1.0"
