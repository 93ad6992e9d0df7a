"""A real deployment under load and under a seeded schedule of faults, and what must hold of it afterwards."""
