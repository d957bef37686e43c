"""Where a loader's data should lie: decided from sizes and budgets, before it is read."""
