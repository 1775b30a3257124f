"""Benchmarks of the planner and of the native board, and the report on the POET paper."""
