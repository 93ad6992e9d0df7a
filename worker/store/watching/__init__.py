"""Read state off the rows for operators and forecasts: workers, queues, rates, the overview."""
