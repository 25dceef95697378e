"""Where candidates come from when a caller brings none: `interface` says what, `lucene` how."""
