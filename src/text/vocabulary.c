#include "text/byte_alphabet.h"
#include "text/internal.h"

#include <stdlib.h>
#include <string.h>

/* Makes ids below `size` known, as ids without a token. */
static int grow(struct vocabulary *v, int64_t size, struct error *err)
{
    if (size <= v->size)
        return 0;
    if (array_reserve(&v->tokens, &v->tokens_capacity, (size_t)size, sizeof *v->tokens) != 0)
        return error_memory(err, (size_t)size * sizeof *v->tokens, "the vocabulary");
    for (int64_t i = v->size; i < size; i++)
        v->tokens[i] = (struct token){.text = TOKEN_NONE};
    v->size = size;
    return 0;
}

int vocabulary_add(struct vocabulary *v, const char *text, size_t length, uint32_t id, uint32_t flags,
                   struct error *err)
{
    uint32_t number;
    int added;

    if (id >= TOKEN_ID_LIMIT)
        return error_set(err, ERROR_INPUT, NULL, NULL, "the id %u of \"%.80s\" is beyond the limit of %d", id,
                         text, TOKEN_ID_LIMIT);
    if (grow(v, (int64_t)id + 1, err) != 0)
        return -1;
    added = byte_map_add(&v->texts, text, length, &number);
    if (added < 0 || array_reserve(&v->ids, &v->ids_capacity, (size_t)number + 1, sizeof *v->ids) != 0)
        return error_memory(err, length, "the vocabulary");
    if (added == 1)
        v->ids[number] = TOKEN_NONE;
    if (v->ids[number] != TOKEN_NONE && v->ids[number] != id)
        return error_set(err, ERROR_INPUT, NULL, NULL, "\"%.80s\" has two ids, %u and %u", text,
                         v->ids[number], id);
    if (v->tokens[id].text != TOKEN_NONE && v->tokens[id].text != number)
        return error_set(err, ERROR_INPUT, NULL, NULL,
                         "the id %u belongs to two tokens, \"%.80s\" and \"%.80s\"", id,
                         byte_map_key(&v->texts, v->tokens[id].text, NULL), text);
    v->ids[number] = id;
    v->tokens[id].text = number;
    v->tokens[id].flags |= flags;
    return 0;
}

uint32_t vocabulary_find(const struct vocabulary *v, const char *text, size_t length, uint32_t flags)
{
    uint32_t number = byte_map_find(&v->texts, text, length);
    uint32_t id = number == MAP_NONE ? TOKEN_NONE : v->ids[number];

    return id != TOKEN_NONE && (v->tokens[id].flags & flags) == flags ? id : TOKEN_NONE;
}

int vocabulary_finish(struct vocabulary *v, struct error *err)
{
    size_t used = 0, room = v->texts.bytes_used + 1; /* bytes are never longer than the text for them */

    v->decoded = malloc(room);
    if (v->decoded == NULL)
        return error_memory(err, room, "the vocabulary");
    for (int64_t id = 0; id < v->size; id++) {
        struct token *t = &v->tokens[id];
        size_t length, decoded;
        const char *text;
        if (t->text == TOKEN_NONE)
            continue;
        text = byte_map_key(&v->texts, t->text, &length);
        decoded = byte_alphabet_decode(text, length, v->decoded + used);
        if (decoded == SIZE_MAX) { /* not in the alphabet: the text itself is meant */
            memcpy(v->decoded + used, text, length);
            decoded = length;
        }
        t->bytes = used;
        t->bytes_length = (uint32_t)decoded;
        used += decoded;
    }
    return 0;
}

void vocabulary_free(struct vocabulary *v)
{
    byte_map_free(&v->texts);
    free(v->ids);
    free(v->tokens);
    free(v->decoded);
    *v = (struct vocabulary){0};
}
