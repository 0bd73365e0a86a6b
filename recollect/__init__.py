"""Recollect: a classifier that looks up precedents in a growing history."""

__version__ = "0.1.0"
