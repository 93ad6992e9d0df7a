"""Runs a planned Step through the model on the device."""
