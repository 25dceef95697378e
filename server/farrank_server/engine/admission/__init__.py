"""Admission: whether there is room and time for a call."""
