"""Who learns to place: DOPPLER, its learned rivals, and how they are trained."""
