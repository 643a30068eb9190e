/* What `tercet doctor` finds out. Private to its files: cmd_doctor.c gathers and measures, doctor_mpi.c looks
 * at launchers and ranks, doctor_report.c writes it down. */
#ifndef TERCET_CLI_DOCTOR_H
#define TERCET_CLI_DOCTOR_H

#include "cli/cli.h"
#include "cli/libraries.h"
#include "plan/machine.h"
#include "plan/peaks.h"

/* A rank of the launcher's group, by itself. */
struct doctor_rank {
    char host[64];
    int cores_online, cores; /* of its machine; that it may run on */
    uint64_t allowed[64];    /* those cores, a bit each; cores beyond are only counted */
};

struct doctor_mpi {
    bool built, under_launcher;
    char library[128];          /* of the build */
    char launcher[512];         /* a path; empty: none on PATH */
    char launcher_version[160]; /* empty: it does not tell */
    int rank_count;             /* under a launcher: of the group that found together */
    struct doctor_rank *ranks;
};

struct doctor {
    struct machine machine;
    struct libraries libraries;
    struct doctor_mpi mpi;
    int nvidia_gpus;
    double bandwidth, bandwidth_one_thread; /* bytes a second; 0: not measured */
    int threads;                            /* that `bandwidth` was measured with */
    struct peaks peaks;                     /* of this machine */
    char *path;                             /* where they are kept; NULL: nowhere */
    struct error_list missing;              /* problem and remedy; what is to be mended */
};

/* Adds to `missing`. The remedy may be NULL. */
void doctor_miss(struct doctor *d, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fills d->mpi; under a launcher, joins the ranks, all of which call this. */
void doctor_look_at_mpi(struct doctor *d, struct cli *cli);

void doctor_text(const struct doctor *d, struct strbuf *out);
void doctor_json(const struct doctor *d, struct strbuf *out);

#endif
