"""Diagnose: run every carrier over every boundary for real, and tell what arrives."""
