"""Operators of the engine, one folder each.

They use torch (and Triton on a GPU) and must import nothing of this repository outside `kernels`.
"""
