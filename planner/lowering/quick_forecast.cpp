// Counts a candidate plan without making its program.
