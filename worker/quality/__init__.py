"""Compares the outputs of two configurations on the same requests. Pure: no torch, no rows, no HTTP."""
