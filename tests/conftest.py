"""Hypothesis for all tests: no deadline, since a timing is never a test."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "lamina",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # the first text drawn on a machine builds Hypothesis' Unicode tables
)
settings.load_profile("lamina")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")
