"""Who may use how much memory and disk."""
