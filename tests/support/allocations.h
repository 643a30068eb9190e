/* Counts the allocations of the program under test, and makes them fail at will.
 *
 * Test programs are linked with --wrap=malloc, calloc, realloc and aligned_alloc, so calls from Tercet and
 * from the test come through here; those of shared libraries (the C library's own too) do not.
 *
 *     for (int64_t n = 0;; n++) {          // every allocation fails once
 *         allocations_fail_after(n);
 *         int status = thing_create(&thing, &err);
 *         allocations_fail_after(-1);
 *         if (status == 0)
 *             break;
 *     } */
#ifndef TERCET_TESTS_ALLOCATIONS_H
#define TERCET_TESTS_ALLOCATIONS_H

#include <stdint.h>

/* Allocations asked for since the program started, by all threads. */
int64_t allocations_count(void);
/* n more succeed, then all fail. Negative: none fails. */
void allocations_fail_after(int64_t n);
/* n more succeed, then one fails. */
void allocations_fail_once(int64_t n);

#endif
