"""Published model families: each reads its config.json into a DecoderConfig."""
