"""Evaluation and calibration text: LAMBADA, files, and a generated world of stories."""
