"""Plots, drawn with matplotlib if it is installed."""
