"""The response cache: answers kept for later identical or similar requests."""
