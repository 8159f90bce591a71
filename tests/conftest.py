"""Hypothesis for all tests: no deadline, since a timing is never a test."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "lamina",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # the first text drawn on a machine builds Hypothesis' Unicode tables
)
settings.load_profile("lamina")
