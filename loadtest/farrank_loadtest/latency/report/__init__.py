"""What a sweep leaves: JSON, CSV, charts, and one page that a person can read."""
