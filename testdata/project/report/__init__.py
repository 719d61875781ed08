"""Renders the summary that logstat prints."""
