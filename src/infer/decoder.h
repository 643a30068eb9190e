/* Decoding: one sequence through a model, a chunk of tokens at a time, with keys and values of earlier
 * tokens kept in a cache.
 *
 *     struct decoder *d;
 *     struct decoder_options options = {.compute = DTYPE_F32, .capacity = 512};
 *     decoder_create(&d, model, comm, backend, &options, err);
 *     decoder_load(d, &weights, err);            // of weights_open
 *     decoder_feed(d, prompt, n, logits, err);   // logits[vocab_size] of what follows the prompt
 *     for (;;) {
 *         id = …;
 *         decoder_feed(d, &id, 1, logits, err);
 *     }
 *     decoder_reset(d);                          // another sequence
 *     decoder_free(d);
 *
 * All memory is allocated by decoder_create; nothing is allocated while decoding. How a sequence is cut into
 * calls and chunks changes nothing but the time it takes where the backend's results do not depend on the
 * number of rows. */
#ifndef TERCET_INFER_DECODER_H
#define TERCET_INFER_DECODER_H

#include "backend/backend.h"
#include "comm/comm.h"
#include "formats/safetensors.h"
#include "models/model.h"

enum { DECODER_CHUNK = 256, DECODER_MAX_CHUNK = 1 << 16 };

struct decoder_options {
    enum dtype compute;  /* DTYPE_F32 or DTYPE_BF16 */
    int64_t capacity;    /* the most tokens of a sequence, 1 … the model's max_positions */
    int64_t chunk;       /* tokens computed at once, at most DECODER_MAX_CHUNK; 0: DECODER_CHUNK */
    int64_t logits_rows; /* positions whose logits are computed at once, at most the chunk; 0: 1 */
};

/* Bytes that a decoder holds. */
struct decoder_memory {
    int64_t weights; /* in the compute type */
    int64_t cache;   /* keys and values of `capacity` tokens */
    int64_t work;    /* all else: activations, logits, inputs and their host copies */
};

struct decoder;

/* Borrows all its arguments. Every rank of `comm` (one, as a rule) holds the whole model and decodes by
 * itself. ERROR_INPUT when capacity does not lie within 1 … max_positions; ERROR_RUN when memory is short. */
int decoder_create(struct decoder **out, const struct model *model, struct comm *comm,
                   struct backend *backend, const struct decoder_options *options, struct error *err);
void decoder_free(struct decoder *d); /* NULL is allowed */
/* Fills the weights from an open set; see weights_open. */
int decoder_load(struct decoder *d, const struct safetensors_set *set, struct error *err);

const struct decoder_memory *decoder_memory(const struct decoder *d);

/* Tokens fed since the start or the last reset. */
int64_t decoder_length(const struct decoder *d);
void decoder_reset(struct decoder *d);

/* Appends n >= 1 tokens to the sequence. `logits`, where not NULL, has room for vocab_size floats and gets
 * those of the last token. ERROR_INPUT, with the sequence unchanged, for an id outside the vocabulary and
 * for more tokens than there is room for. ERROR_RUN where a logit is not finite; after an ERROR_RUN the
 * sequence must be reset. */
int decoder_feed(struct decoder *d, const uint32_t *ids, int64_t n, float *logits, struct error *err);

/* The same with the logits of every token, in order: position counts from the start of the sequence; logits
 * [vocab_size] is valid during the call. A sink that returns -1 ends it with the error that it filled. */
typedef int decoder_sink(void *context, int64_t position, const float *logits, struct error *err);
int decoder_feed_all(struct decoder *d, const uint32_t *ids, int64_t n, decoder_sink *sink, void *context,
                     struct error *err);

/* ERROR_INPUT naming the first of n ids that the model has no embedding for. */
int decoder_check_ids(const struct model *model, const uint32_t *ids, int64_t n, struct error *err);
/* ERROR_INPUT where `tokens` is more than the model's max_positions. */
int decoder_check_length(const struct model *model, int64_t tokens, struct error *err);

#endif
