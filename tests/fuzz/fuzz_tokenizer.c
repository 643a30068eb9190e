/* tokenizer.json, behind a NUL tokenizer_config.json, behind another one a text to encode. Ids that come of a
 * text are in the vocabulary; decoding at once and as ids come gives the same text. */
#include "fuzz/input.h"

#include "text/tokenizer.h"

#include <string.h>

static void encode(const struct tokenizer *tok, const char *text, size_t length, unsigned flags)
{
    struct tokenizer_scratch *scratch;
    struct token_buffer ids = {0};
    struct tokenizer_stream stream = {0};
    struct strbuf whole = {0}, pieces = {0};
    struct error err;
    FUZZ_CHECK(tokenizer_scratch_create(tok, &scratch, &err) == 0);
    if (tokenizer_encode(tok, scratch, text, length, flags, &ids, &err) == 0) {
        for (int64_t i = 0; i < ids.count; i++) {
            FUZZ_CHECK(ids.ids[i] < tokenizer_vocab_size(tok));
            FUZZ_CHECK(tokenizer_token_text(tok, ids.ids[i], NULL) != NULL);
            tokenizer_stream_feed(&stream, tok, ids.ids[i], &pieces);
        }
        tokenizer_stream_finish(&stream, &pieces);
        tokenizer_decode(tok, ids.ids, ids.count, false, &whole);
        FUZZ_CHECK(!whole.failed && !pieces.failed && whole.length == pieces.length);
        FUZZ_CHECK(whole.length == 0 || memcmp(whole.data, pieces.data, whole.length) == 0);
    } else {
        FUZZ_CHECK(err.what[0] != '\0');
    }
    strbuf_free(&whole);
    strbuf_free(&pieces);
    token_buffer_free(&ids);
    tokenizer_scratch_free(scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "Hello, world's 2026 <|endoftext|>\n\n  \xc3\xa9 \xe4\xbd\xa0 tab\there";
    struct fuzz_part rest = {data, size}, file = fuzz_part(&rest), config = fuzz_part(&rest);
    struct fuzz_directory d;
    struct tokenizer *tok;
    struct error err;
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, "tokenizer.json", file.data, file.size);
    if (config.size > 0)
        fuzz_directory_put(&d, "tokenizer_config.json", config.data, config.size);
    if (tokenizer_load(d.path, &tok, &err) == 0) {
        FUZZ_CHECK(tokenizer_bos(tok) < tokenizer_vocab_size(tok));
        FUZZ_CHECK(tokenizer_eos(tok) < tokenizer_vocab_size(tok));
        for (unsigned flags = 0; flags < 8; flags += 3) {
            encode(tok, sample, sizeof sample - 1, flags);
            encode(tok, rest.size > 0 ? (const char *)rest.data : "", rest.size, flags);
        }
        tokenizer_free(tok);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    fuzz_directory_remove(&d);
    return 0;
}
