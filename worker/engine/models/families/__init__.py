"""Published model families: each module reads its family's config.json into a DecoderConfig."""
