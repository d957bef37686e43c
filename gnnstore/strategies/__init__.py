"""How attributes are reached: chosen, sized and opened."""
