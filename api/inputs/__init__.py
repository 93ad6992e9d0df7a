"""Defines the fields that several routes take, and reads the checkpoint that they are checked against."""
