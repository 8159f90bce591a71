"""Servers that the row `gateway` runs, each in a process of its own."""
