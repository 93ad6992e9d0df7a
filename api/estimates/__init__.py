"""Estimates what a batch would take, before anything is queued."""
