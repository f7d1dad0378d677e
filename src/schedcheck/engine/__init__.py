"""Driving, searching, shrinking and replaying: everything that makes a scheduler act."""
