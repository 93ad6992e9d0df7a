"""Every table. Only worker.store imports them."""
