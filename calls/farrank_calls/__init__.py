"""The parts of a call that every stage shares: its errors, its account's fair share, its record and trace."""
