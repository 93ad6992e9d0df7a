"""What a batch would take, before anything is queued."""
