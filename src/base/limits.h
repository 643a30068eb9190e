/* What this process may use of its machine: memory and CPU time, as the kernel and the process's control
 * groups (containers, batch systems) allow. Described, not reserved: others may take it meanwhile.
 *
 *     struct limits l;
 *     limits_read("", &l);
 *     if (l.memory_available >= 0 && need > l.memory_available) ...
 */
#ifndef TERCET_BASE_LIMITS_H
#define TERCET_BASE_LIMITS_H

#include <stdint.h>

struct limits {               /* bytes; -1: unknown */
    int64_t memory;           /* of the machine */
    int64_t memory_available; /* without swapping: MemAvailable, or what a control group still has if less */
    int64_t swap_free;        /* 0 where it cannot be told */
    int64_t memory_limit;     /* the lowest of the control groups; -1: none */
    double quota;             /* cores' worth of time that they may use; 0: no limit */
};

/* `root` stands before /proc and /sys, as a rule "". What cannot be found out is left unknown. */
void limits_read(const char *root, struct limits *out);

#endif
