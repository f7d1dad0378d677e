"""Adapters: one small package for each engine, and nobody imports an engine but its own."""
