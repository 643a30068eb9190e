/* What this machine is, as far as it matters for training: its CPU, the cores and the memory that this
 * process may use, and the backend's products on it. Described, not measured: measure.h does that. */
#ifndef TERCET_PLAN_MACHINE_H
#define TERCET_PLAN_MACHINE_H

#include "backend/backend.h"
#include "base/limits.h"
#include "base/strbuf.h"

struct machine {
    char cpu[160];      /* "AMD EPYC 9V74, family 25, model 17" */
    char features[160]; /* instructions of the CPU that matter here, by their names in Linux; may be empty */
    int cores_online;   /* of the machine */
    int cores;          /* that this process may run on */
    struct limits limits; /* memory and time */
    int64_t last_cache;   /* bytes of the largest cache of a core; 0: unknown */
    struct backend_description products;
};

/* `root` stands before /proc and /sys, as a rule "". What cannot be found out is left unknown. */
void machine_describe(const char *root, const struct backend *backend, struct machine *out);

/* The CPU has this feature (a word of `features`). */
bool machine_has(const struct machine *m, const char *feature);

/* One line that is the same where the speed of products can be expected to be the same: CPU, cores, quota,
 * product library and instruction set. */
void machine_key(const struct machine *m, struct strbuf *out);

#endif
