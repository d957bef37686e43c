"""Input arrays in files of many kinds, read piece by piece."""
