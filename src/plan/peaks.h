/* Measured matrix-product peaks, kept from one process to the next: a JSON file that `tercet doctor` writes
 * and `tercet train` looks into for its share of the peak.
 *
 *     {"format": 1, "peaks": [{"machine": "…", "dtype": "bf16", "threads": 2, "linear": 4.1e11,
 *                              "grad_input": 4.0e11, "grad_weight": 3.9e11, "time": 1700000000}, …]}
 *
 * `machine` is machine_key(), so several machines that share a home directory do not mix. The file is
 * written aside and renamed. A file that is damaged or of another format counts as empty; the next save
 * replaces it. */
#ifndef TERCET_PLAN_PEAKS_H
#define TERCET_PLAN_PEAKS_H

#include "plan/measure.h"

struct peak {
    char *machine;
    enum dtype dtype;
    int threads;
    struct measured_products rates;
    int64_t time; /* seconds since 1970 */
};

struct peaks {
    struct peak *items;
    int64_t count, capacity;
};

/* $XDG_CACHE_HOME/tercet/peaks.json, or ~/.cache/tercet/peaks.json; NULL where neither variable holds an
 * absolute path (nothing is kept then) or memory is out. The caller frees. */
char *peaks_path(void);

/* Reads the file; empty where there is none or it is damaged (*damaged, may be NULL, tells). ERROR_RUN when
 * out of memory only. */
int peaks_load(const char *path, struct peaks *out, bool *damaged, struct error *err);
/* Makes the directories that are missing. */
int peaks_save(const char *path, const struct peaks *p, struct error *err);
void peaks_free(struct peaks *p); /* safe on a zeroed one */

/* NULL: not measured. */
const struct peak *peaks_find(const struct peaks *p, const char *machine, enum dtype dtype, int threads);
/* Adds one, or replaces what is there for the same machine, dtype and threads. `peak->machine` is copied. */
int peaks_put(struct peaks *p, const struct peak *peak, struct error *err);

/* What was measured here for a backend of this kind, in FLOPs a second; 0: nothing, or it cannot be read.
 * More threads than the machine has cores count as one a core. */
double peaks_of_backend(const struct backend *backend, enum dtype dtype, int threads);

#endif
