"""The calculation of a plan, what it prints, and what it measures: no broker."""
