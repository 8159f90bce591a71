"""The turn: what is stored when, what is shown, and how it ends."""
