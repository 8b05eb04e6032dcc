"""Trainers and precision for torch. The trailing underscore keeps this package from shadowing the framework."""
