"""WHEN: a turn is built from its layers, sent, answered, and stored step by step."""
