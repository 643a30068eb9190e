#include "shard/layout.h"

#include <stdlib.h>

int flat_layout_create(struct flat_layout *out, int param_count, const int64_t *elements, struct error *err)
{
    *out = (struct flat_layout){.param_count = param_count};
    out->offset = malloc(((size_t)param_count + 1) * sizeof *out->offset);
    if (!out->offset)
        return error_memory(err, ((size_t)param_count + 1) * sizeof *out->offset, "a layout");
    out->offset[0] = 0;
    for (int k = 0; k < param_count; k++)
        out->offset[k + 1] = out->offset[k] + elements[k];
    out->elements = out->offset[param_count];
    out->blocks = (out->elements + SHARD_BLOCK - 1) / SHARD_BLOCK;
    return 0;
}

void flat_layout_free(struct flat_layout *l)
{
    free(l->offset);
    *l = (struct flat_layout){0};
}

int64_t flat_layout_run(const struct flat_layout *l, int ranks)
{
    return (l->blocks + ranks - 1) / ranks * SHARD_BLOCK;
}

void flat_layout_range(const struct flat_layout *l, int ranks, int rank, int64_t *first, int64_t *end)
{
    int64_t run = flat_layout_run(l, ranks);
    *first = rank * run < l->elements ? rank * run : l->elements;
    *end = *first + run < l->elements ? *first + run : l->elements;
}

void flat_layout_cuts(const struct flat_layout *l, int ranks, int64_t element_bytes, int64_t *cuts)
{
    for (int r = 0; r < ranks; r++) {
        int64_t first, end;
        flat_layout_range(l, ranks, r, &first, &end);
        cuts[r] = first * element_bytes;
        cuts[r + 1] = end * element_bytes;
    }
}
