/* Safetensors: the files that hold a model's weights.
 *
 * A file is
 *
 *     8 bytes    N, the header's length, little-endian
 *     N bytes    the header, a JSON object, padded with spaces at the end
 *     the rest   the tensors' data, row-major and little-endian
 *
 * The header maps each tensor's name to {"dtype": "F32", "shape": [rows, columns], "data_offsets":
 * [begin, end]}, offsets counted from the first byte after the header; "__metadata__" maps strings to
 * strings. The data of all tensors lie end to end: no hole, no overlap, nothing after the last one.
 *
 * Reading one file, or a model directory (one file, or several with an index):
 *
 *     struct safetensors_set set;
 *     if (safetensors_set_open(&set, "path/to/model", err) != 0)
 *         return -1;
 *     const struct safetensors_tensor *t = safetensors_set_find(&set, "model.norm.weight");
 *     if (t != NULL)
 *         safetensors_get(t, 0, t->elements, DTYPE_F32, weights);
 *     safetensors_set_close(&set);
 *
 * Writing: all tensors are declared first, then their data follow in the order of declaration, in
 * pieces of any size, so that nothing but the piece at hand is in memory:
 *
 *     struct safetensors_plan plan = {0};
 *     safetensors_plan_metadata(&plan, "format", "pt", err)        // every model file has this one
 *     safetensors_plan_add(&plan, name, DTYPE_BF16, 2, shape, err) // for each tensor
 *     safetensors_writer_open(&writer, path, &plan, err)
 *     safetensors_writer_write(&writer, bytes, n, err)             // many times
 *     safetensors_writer_commit(&writer, &size, &hash, err)
 *     safetensors_plan_free(&plan);
 *
 * The bytes of a written file depend on the plan and the data alone. */
#ifndef TERCET_FORMATS_SAFETENSORS_H
#define TERCET_FORMATS_SAFETENSORS_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

enum { SAFETENSORS_MAX_RANK = 8 };

struct safetensors_tensor {
    const char *name;
    enum dtype dtype;
    int rank; /* 0 for a scalar, which has one element */
    int64_t shape[SAFETENSORS_MAX_RANK];
    int64_t elements, bytes;
    int64_t offset;   /* of the first byte, from the start of the file */
    const void *data; /* mapped, read-only; NOT aligned: read it with safetensors_get */
    const char *path; /* of the file, for messages */
};

struct safetensors_pair {
    const char *key, *value;
};

struct safetensors {
    char *path;
    struct file_map map;
    struct safetensors_tensor *tensors; /* in the order of their data */
    int64_t count;
    int64_t data_bytes;                /* of all tensors */
    struct safetensors_pair *metadata; /* in the order of the header */
    int64_t metadata_count;
    int64_t *by_name; /* private */
    void *header;     /* private: owns names and metadata */
};

/* Maps and checks a whole file (its header; data are not read). ERROR_INPUT for everything that is
 * wrong with it: missing, truncated, bad JSON, duplicate names, unknown dtypes, sizes that overflow or
 * do not match the shape, overlaps, holes, bytes after the last tensor. On failure *out is zeroed. */
int safetensors_open(struct safetensors *out, const char *path, struct error *err);
/* Safe on a zeroed or closed struct. Tensors found in it are gone afterwards. */
void safetensors_close(struct safetensors *file);
/* The tensor of this name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);
/* The value of a metadata key, or NULL. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

/* Elements first … first+n-1 (row-major) to dst, which has room for n elements of type `to`. Equal
 * types are copied; F32, BF16, F16 and F64 are converted into one another, rounding to nearest even.
 * -1 with ERROR_INPUT where the types have no conversion (an integer tensor read as a float). */
int safetensors_get(const struct safetensors_tensor *tensor, int64_t first, int64_t n, enum dtype to,
                    void *dst, struct error *err);

/* Elements of a shape (1 for rank 0); -1 where a dimension is negative or the product overflows. */
int safetensors_shape_elements(int rank, const int64_t *shape, int64_t *elements);

/* "F32 [3, 4]" into out (cut where too long), returned. For messages. */
char *safetensors_describe(const struct safetensors_tensor *tensor, char *out, size_t size);

/* The weights of a model directory: model.safetensors, or the shards that
 * model.safetensors.index.json lists. */
struct safetensors_set {
    char *directory;
    struct safetensors *files;
    int64_t file_count;
    const struct safetensors_tensor **tensors; /* sorted by name (bytewise) */
    int64_t count;
    int64_t data_bytes;
    bool indexed;
};

/* Opens and checks all files. ERROR_INPUT where a file is wrong, where neither or both forms are there,
 * where a shard is missing or named by more than a plain file name, where a tensor is in the index but
 * not in its shard, in a shard but not in the index, or in two shards. On failure *out is zeroed. */
int safetensors_set_open(struct safetensors_set *out, const char *directory, struct error *err);
/* The same for STEM.safetensors or STEM.safetensors.index.json (safetensors_set_open's is "model"). */
int safetensors_set_open_named(struct safetensors_set *out, const char *directory, const char *stem,
                               struct error *err);
void safetensors_set_close(struct safetensors_set *set);
/* The tensor of this name, or NULL. */
const struct safetensors_tensor *safetensors_set_find(const struct safetensors_set *set, const char *name);

/* What a file to be written will hold. Zero-initialise. */
struct safetensors_plan {
    struct safetensors_planned *tensors; /* private from here on */
    struct safetensors_planned_pair *metadata;
    int64_t count, capacity, metadata_count, metadata_capacity;
    int64_t data_bytes;
};

/* Declares the next tensor; name and shape are copied. ERROR_INPUT for an empty or non-UTF-8 name,
 * "__metadata__", more than SAFETENSORS_MAX_RANK dimensions, a negative one, a size that overflows. (A
 * name declared twice is found by safetensors_writer_open.) */
int safetensors_plan_add(struct safetensors_plan *plan, const char *name, enum dtype dtype, int rank,
                         const int64_t *shape, struct error *err);
/* Adds a pair to "__metadata__"; pairs are written in the order given. */
int safetensors_plan_metadata(struct safetensors_plan *plan, const char *key, const char *value,
                              struct error *err);
/* Bytes of the whole file, to check free space beforehand; -1 when out of memory. */
int64_t safetensors_plan_bytes(const struct safetensors_plan *plan);
/* The file up to its data: the header's length and the header, into a zeroed `out`. Where data are to be
 * written in another order than the plan's, by several processes perhaps, this is what stands before them.
 * ERROR_INPUT for a name that was declared twice or too long a header; `path` is for messages. */
int safetensors_plan_header(const struct safetensors_plan *plan, const char *path, struct strbuf *out,
                            struct error *err);
void safetensors_plan_free(struct safetensors_plan *plan);

struct safetensors_writer {
    struct file_writer file;
    const struct safetensors_plan *plan;
    int64_t written; /* bytes of data */
};

/* Opens PATH's temporary file and writes the header. The plan must not change or go away before commit
 * or abort. On failure nothing is left behind. */
int safetensors_writer_open(struct safetensors_writer *w, const char *path,
                            const struct safetensors_plan *plan, struct error *err);
/* The next n bytes of data, in the order of the plan; pieces need not respect tensors' borders. More
 * than was declared is refused. */
int safetensors_writer_write(struct safetensors_writer *w, const void *data, size_t n, struct error *err);
/* The tensor (its number in the plan) that the next byte belongs to; the plan's count when complete. */
int64_t safetensors_writer_at(const struct safetensors_writer *w);
/* Checks that exactly the declared bytes were written, syncs, and makes the file appear under its
 * name. *size and *hash (XXH3-64), which may be NULL, are those of the whole file. The writer is gone
 * afterwards, whether it worked or not. */
int safetensors_writer_commit(struct safetensors_writer *w, int64_t *size, uint64_t *hash, struct error *err);
/* Drops the temporary file. Safe on a zeroed, committed or aborted writer. */
void safetensors_writer_abort(struct safetensors_writer *w);

#endif
