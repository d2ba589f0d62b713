"""elsa-build: keep a downstream of SGLang as a short, reviewed stack of patches."""

__version__ = "0.1.0"
