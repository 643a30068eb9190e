/* Programs: a graph made ready to run. Every value has a place, known before anything is allocated.
 *
 * The scheduler keeps the order of the nodes, decides what the backward pass finds saved and what it
 * computes again, and gives each value an offset in one of two regions:
 *
 *   saved   written by the forward part, read by the backward part of the same unit and micro-batch
 *   work    temporaries (and workspaces of ops) of one part; free again when the part has run
 *
 * Other values live with the caller: inputs and outputs by name ("io"), parameters and their gradients by
 * index. The caller keeps inputs and forward outputs until the backward part has run.
 *
 *     struct program *p;
 *     program_compile(&p, graph, &options, err);
 *     … allocate p->saved_bytes and the larger of p->part[].work_bytes, run with exec.h …
 *     program_free(p);
 *
 * Blocks of one shape share one program: it holds no addresses. */
#ifndef TERCET_GRAPH_PROGRAM_H
#define TERCET_GRAPH_PROGRAM_H

#include "graph/graph.h"

enum recompute {
    RECOMPUTE_NONE, /* all that the backward pass reads is saved */
    /* A value is computed again where that is cheap for its bytes (op_is_cheap) and needs nothing saved that
     * would not be there anyway: norms, products of gates. */
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_FULL, /* only the unit's inputs are kept; the backward part runs the forward again */
};

enum place { PLACE_NONE, PLACE_IO, PLACE_PARAM, PLACE_GRAD, PLACE_SAVED, PLACE_WORK };

struct program_operand {
    enum place place;
    int index;      /* io slot or parameter */
    int64_t offset; /* bytes, in saved or work */
    enum dtype type;
    int ndim;
    int64_t dim[OP_MAX_DIMS];
};

struct program_step {
    enum op op;
    int inputs, outputs;
    struct program_operand in[OP_MAX_INPUTS], out[OP_MAX_OUTPUTS];
    struct op_attr attr;
    int64_t workspace, workspace_bytes; /* in work */
    bool recomputed;                    /* a forward op that the backward part runs again */
};

enum { PROGRAM_FORWARD, PROGRAM_BACKWARD, PROGRAM_PARTS };

struct program_part {
    struct program_step *steps;
    int count;
    int64_t work_bytes;
};

struct program_io {
    char name[48];
    enum dtype type;
    int ndim;
    int64_t dim[OP_MAX_DIMS];
    bool output;
};

struct program {
    struct program_part part[PROGRAM_PARTS];
    struct program_io *io;
    int io_count, param_count;
    int64_t saved_bytes;
    struct graph_counts bounds;
};

struct program_options {
    struct graph_counts bounds; /* memory is planned for these */
    enum recompute recompute;
    /* By parameter: true where the backward part adds to the gradient that is there instead of
     * writing it (a parameter that a unit run earlier in the backward pass uses too). NULL: none. */
    const bool *grad_adds;
    /* Bytes of workspace that a call needs (operand addresses are NULL, sizes the bounds). */
    int (*workspace)(void *context, const struct op_call *call, size_t *bytes, struct error *err);
    void *context;
};

int program_compile(struct program **out, const struct graph *g, const struct program_options *options,
                    struct error *err);
void program_free(struct program *p);

/* Slot number of a named input or output; -1 when the program has none. */
int program_slot(const struct program *p, const char *name);
int64_t program_io_bytes(const struct program_io *io, const struct graph_counts *counts);

/* The call of a step for given counts; addresses are left NULL. */
void program_call(const struct program_step *step, const struct graph_counts *counts, struct op_call *call);

#endif
