"""The page in a real Chromium, against a real gateway process with a script for a model."""
