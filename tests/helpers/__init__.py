"""Samples and stand-ins that several test modules share."""
