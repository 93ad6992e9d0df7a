"""Who may come in, how fast, and with what: keys, limits, strangers, slow and broken clients."""
