"""Budgets of memory and disk: limits, and the parts that share them."""
