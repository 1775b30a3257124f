"""Benchmarks: the planner beside the paper's formulation, and the native board."""
