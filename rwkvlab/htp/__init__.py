"""Qualcomm HTP: compiling context binaries, caching them, running them."""
