"""Operators of the engine, one folder each. Imports torch (and Triton, on a GPU) and nothing of ours."""
