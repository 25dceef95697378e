"""Admission: decides whether there is room and time for a call."""
