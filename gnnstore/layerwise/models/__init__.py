"""The layers of a model, their calls, and their blocks."""
