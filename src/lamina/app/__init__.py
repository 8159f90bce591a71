"""The only place that builds things: settings, files and the store in, rooms that know nothing of each other out."""
