#include "text/internal.h"
#include "text/utf8.h"

#include <string.h>

/* Adds bytes to the character that is pending, until it is complete or there are none left. Returns how
 * many bytes were taken. */
static size_t complete_pending(struct tokenizer_stream *stream, const uint8_t *bytes, size_t n,
                               struct strbuf *out)
{
    size_t used = 0;

    while (stream->fill > 0 && used < n) {
        size_t length;
        stream->pending[stream->fill++] = bytes[used++];
        switch (utf8_step(stream->pending, (size_t)stream->fill, &length)) {
        case UTF8_INCOMPLETE:
            break;
        case UTF8_OK:
            strbuf_append(out, stream->pending, length);
            stream->fill = 0;
            break;
        case UTF8_INVALID: /* the new byte does not go on with the character, so it begins another */
            strbuf_puts(out, "\xef\xbf\xbd");
            stream->fill = 0;
            return used - 1;
        }
    }
    return used;
}

void tokenizer_stream_feed(struct tokenizer_stream *stream, const struct tokenizer *tok, uint32_t id,
                           struct strbuf *out)
{
    const struct token *t;
    const uint8_t *bytes;
    size_t n, used;

    if (id >= tok->vocabulary.size)
        return;
    t = &tok->vocabulary.tokens[id];
    if (t->text == TOKEN_NONE || (stream->skip_special && (t->flags & TOKEN_SPECIAL) != 0))
        return;
    bytes = tok->vocabulary.decoded + t->bytes;
    n = t->bytes_length;
    used = complete_pending(stream, bytes, n, out);
    if (stream->fill > 0)
        return;
    used += utf8_append_lossy(out, bytes + used, n - used, false);
    stream->fill = (int)(n - used);
    memcpy(stream->pending, bytes + used, n - used);
}

void tokenizer_stream_finish(struct tokenizer_stream *stream, struct strbuf *out)
{
    utf8_append_lossy(out, stream->pending, (size_t)stream->fill, true);
    stream->fill = 0;
}

void tokenizer_decode(const struct tokenizer *tok, const uint32_t *ids, int64_t n, bool skip_special,
                      struct strbuf *out)
{
    struct tokenizer_stream stream = {.skip_special = skip_special};

    for (int64_t i = 0; i < n; i++)
        tokenizer_stream_feed(&stream, tok, ids[i], out);
    tokenizer_stream_finish(&stream, out);
}
