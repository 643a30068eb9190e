#include "data/encoder.h"

#include <assert.h>
#include <stdlib.h>

struct text_encoder {
    const struct tokenizer *tok;
    int threads;
    struct tokenizer_scratch *scratch[]; /* [threads] */
};

int text_encoder_create(struct text_encoder **out, const struct tokenizer *tok, int threads,
                        struct error *err)
{
    assert(threads >= 1);
    *out = NULL;
    size_t size = sizeof(struct text_encoder) + (size_t)threads * sizeof(struct tokenizer_scratch *);
    struct text_encoder *encoder = calloc(1, size);
    if (!encoder)
        return error_memory(err, size, "a text encoder");
    encoder->tok = tok;
    encoder->threads = threads;
    for (int i = 0; i < threads; i++) {
        if (tokenizer_scratch_create(tok, &encoder->scratch[i], err) != 0) {
            text_encoder_free(encoder);
            return -1;
        }
    }
    *out = encoder;
    return 0;
}

void text_encoder_free(struct text_encoder *encoder)
{
    if (!encoder)
        return;
    for (int i = 0; i < encoder->threads; i++)
        tokenizer_scratch_free(encoder->scratch[i]);
    free(encoder);
}

int text_encoder_encode(void *context, int thread, const char *text, size_t size, bool special,
                        struct token_buffer *out, struct error *err)
{
    struct text_encoder *encoder = context;
    assert(thread >= 0 && thread < encoder->threads);
    return tokenizer_encode(encoder->tok, encoder->scratch[thread], text, size,
                            special ? ENCODE_SPECIAL_IN_TEXT : 0, out, err);
}
