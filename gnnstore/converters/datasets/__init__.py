"""Converters of data sets: a module for each kind of input."""
