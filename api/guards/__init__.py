"""Guards the API: keys, rates, body sizes, callers without a key, slow and broken clients."""
