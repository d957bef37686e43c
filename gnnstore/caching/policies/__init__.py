"""Cache policies: which row to evict for the next one."""
