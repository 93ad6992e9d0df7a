"""What operators and estimates read off the rows: workers, queues, rates, the overview."""
