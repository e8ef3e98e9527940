"""Samples and stand-ins that several tests share."""
