"""Inputs of several node and edge types, one module for each layout."""
