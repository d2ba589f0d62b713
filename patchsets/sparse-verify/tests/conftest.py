"""Import the verify step of the patched tree with the warnings off."""

import warnings


def pytest_configure() -> None:
    """Import sglang; patchsets/conftest.py has put the tree on the path."""
    # On a CPU sglang warns about the quantisations it can't offer here; under
    # filterwarnings=error that would end the import.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sglang.srt.speculative.eagle_utils  # noqa: F401
