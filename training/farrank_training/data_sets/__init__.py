"""Make collections for training and analysis, and measure where relevant passages lie in existing ones."""
