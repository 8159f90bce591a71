"""lamina inside the frameworks that people use already: a module for each, imported only by those who have it.

`Plan` is the same for all of them. Nothing here talks to a model, and no framework is imported from this file.
"""

from lamina.adapters.plan import Plan

__all__ = ["Plan"]
