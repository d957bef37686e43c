"""The demonstration: a graph made, converted, inspected and trained on in about a minute.

It answers a newcomer's questions with numbers from their own machine: does it install, does
a graph neural network learn from a graph that stays on disk, and what does that cost.
"""
