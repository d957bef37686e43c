"""The layers of a model, how they are called, and on which blocks."""
