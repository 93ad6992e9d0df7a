"""Experiments: what another model makes of a batch's requests."""
