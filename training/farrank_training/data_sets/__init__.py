"""Collections made for training and analysis, and where relevant passages lie in collections that exist."""
