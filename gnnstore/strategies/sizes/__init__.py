"""Divides budgets of memory and disk between the parts of a loader."""
