"""Runs planned Steps through the model on the device."""
