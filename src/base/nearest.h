/* The nearest right name for a wrong one: for "did you mean". */
#ifndef TERCET_BASE_NEAREST_H
#define TERCET_BASE_NEAREST_H

/* Insertions, deletions, changes and swaps of neighbours that turn `a` into `b` (optimal string alignment),
 * upper and lower case alike. Names of more than 64 bytes are 64 away from everything. */
int nearest_distance(const char *a, const char *b);

/* How many such mistakes a word of this length may have and still be recognised. */
int nearest_tolerance(const char *word);

#endif
