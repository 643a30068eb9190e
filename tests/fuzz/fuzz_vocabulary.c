/* GPT-2's form of a tokenizer: vocab.json, behind a NUL merges.txt. The 256 bytes, which a vocabulary must
 * have, are given as tokens 0 … 255 in front of what the input has, unless it begins with a '!'. */
#include "fuzz/input.h"

#include "formats/json.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"

#include <string.h>

/* "{" and the bytes' members; the input's own follow. */
static void put_bytes(struct strbuf *out)
{
    strbuf_puts(out, "{");
    for (int b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        char text[2];
        json_quote(out, text, byte_alphabet_encode(&byte, 1, text));
        strbuf_printf(out, ": %d, ", b);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "Hello, world's 2026 <|endoftext|>\n\n  \xc3\xa9 \xe4\xbd\xa0 tab\there";
    struct fuzz_part rest = {data, size}, vocab = fuzz_part(&rest);
    struct fuzz_directory d;
    struct tokenizer *tok;
    struct tokenizer_scratch *scratch;
    struct token_buffer ids = {0};
    struct strbuf text = {0}, decoded = {0};
    struct error err;
    bool whole = vocab.size > 0 && vocab.data[0] == '!';
    if (!whole)
        put_bytes(&text);
    strbuf_append(&text, vocab.size > whole ? (const char *)vocab.data + whole : "", vocab.size - whole);
    FUZZ_CHECK(!text.failed);
    fuzz_directory_make(&d);
    fuzz_directory_put(&d, "vocab.json", text.data ? text.data : "", text.length);
    fuzz_directory_put(&d, "merges.txt", rest.data, rest.size);
    if (tokenizer_load(d.path, &tok, &err) == 0) {
        FUZZ_CHECK(tokenizer_scratch_create(tok, &scratch, &err) == 0);
        FUZZ_CHECK(tokenizer_encode(tok, scratch, sample, sizeof sample - 1, ENCODE_SPECIAL_IN_TEXT, &ids,
                                    &err) == 0);
        tokenizer_decode(tok, ids.ids, ids.count, false, &decoded);
        FUZZ_CHECK(!decoded.failed && decoded.length == sizeof sample - 1 &&
                   memcmp(decoded.data, sample, decoded.length) == 0);
        token_buffer_free(&ids);
        tokenizer_scratch_free(scratch);
        tokenizer_free(tok);
    } else {
        FUZZ_CHECK(err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0');
    }
    strbuf_free(&text);
    strbuf_free(&decoded);
    fuzz_directory_remove(&d);
    return 0;
}
