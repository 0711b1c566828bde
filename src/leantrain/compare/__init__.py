"""Several runs beside each other: which are compared, training them, summing them up, and what they show."""
