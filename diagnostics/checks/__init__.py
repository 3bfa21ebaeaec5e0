"""Procedures: draw again, leave out, fit again, and see whether a model or an engine holds."""
