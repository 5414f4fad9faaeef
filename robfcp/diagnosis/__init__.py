"""Diagnosis: the likely cause of a report that looks wrong."""

from robfcp.diagnosis._diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
