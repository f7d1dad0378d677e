"""Mutants: the reference with one seeded fault each, a few lines on top of it.

Every one is a fault that a real scheduler had, with the upstream issue that shows it. An invariant
is worth its name only if it kills one of them. ``registry`` lists them.
"""
