"""Measurements. Run one as `python -m benchmarks.NAME` from the repository; each says what it measures and how."""
