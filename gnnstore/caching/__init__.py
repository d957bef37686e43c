"""Decides which rows a cache holds, and when: algorithms on ids, without reading a row."""
