"""Holds a request's tokens while the engine works on them. Knows no scheduler."""
