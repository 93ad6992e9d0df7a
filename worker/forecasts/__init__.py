"""Forecasts the time of batches and the length of outputs from past ones. Knows no HTTP."""
