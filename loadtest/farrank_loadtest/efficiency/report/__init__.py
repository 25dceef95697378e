"""What an efficiency test leaves beside its figures: the plot, a CSV and the table."""
