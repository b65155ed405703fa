"""Prefix caching for hybrid attention + state-space models in SGLang."""

__version__ = "0.1.0"
