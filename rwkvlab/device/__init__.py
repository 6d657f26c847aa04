"""Where a context cache runs."""
