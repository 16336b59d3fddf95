"""Training jobs that come with the package, one a file; their names are ``TASKS`` in ``training_job``."""
