"""WHERE it is kept: sessions, messages, turns, memories, templates and jobs of each owner, in SQLite or PostgreSQL.

One contract, written once as SQL steps; two drivers run it. Nothing here decides what a model sees.
"""
