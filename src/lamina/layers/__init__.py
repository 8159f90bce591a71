"""WHAT goes in, one file per kind of layer. Rooms meet through the ground: nothing else of ours is imported here."""
