/* Byte-pair encoding of one word, in O(n log n).
 *
 * The word is a linked list of symbols, one a byte at first, and a heap holds the merges that neighbours
 * allow, the lowest rank first, among equals the leftmost. A merge whose symbols have changed since it was
 * put in the heap is recognised, when it comes up, by what it would make: boundaries between symbols only
 * vanish, so the pair that now stands there makes the same token only if it is the same pair. (That two pairs
 * make one token, as "Ġ ĠĠĠ" and "ĠĠ ĠĠ" do in Llama 3, is no exception.)
 */
#include "text/byte_alphabet.h"
#include "text/internal.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

enum {
    CACHE_SLOTS = 1 << 15, /* 2 MiB */
    CACHE_WORD = 30,
    CACHE_IDS = 8,
};

/* Words met before. A word has one slot, which the next word that falls on it takes over. */
struct cache_slot {
    uint8_t length, count; /* length 0: free */
    uint8_t word[CACHE_WORD];
    uint32_t ids[CACHE_IDS];
};

struct symbol {
    uint32_t id; /* TOKEN_NONE: it was joined to the one before it */
    int32_t previous, next;
};

struct candidate {
    uint32_t rank;
    int32_t position; /* of the left symbol */
    uint32_t id;      /* what the merge makes */
};

struct bpe_scratch {
    struct cache_slot *cache;
    struct symbol *symbols;
    struct candidate *heap;
    size_t symbol_capacity, heap_capacity, heap_count;
    struct strbuf text;
};

int bpe_add_merge(struct bpe *bpe, const struct vocabulary *v, const char *left, size_t left_length,
                  const char *right, size_t right_length, struct strbuf *joined, struct error *err)
{
    uint32_t a = vocabulary_find(v, left, left_length, TOKEN_IN_MODEL);
    uint32_t b = vocabulary_find(v, right, right_length, TOKEN_IN_MODEL), made;

    strbuf_clear(joined);
    strbuf_append(joined, left, left_length);
    strbuf_append(joined, right, right_length);
    if (joined->failed || array_reserve(&bpe->merge_list, &bpe->merge_capacity, bpe->merge_count + 1,
                                        sizeof *bpe->merge_list) != 0)
        return error_memory(err, left_length + right_length, "the merges");
    made = vocabulary_find(v, joined->data, joined->length, TOKEN_IN_MODEL);
    if (a == TOKEN_NONE || b == TOKEN_NONE || made == TOKEN_NONE)
        return error_set(err, ERROR_INPUT, NULL, NULL,
                         "\"%.80s\" of the merge \"%.80s\" + \"%.80s\" is not in the vocabulary",
                         a == TOKEN_NONE   ? left
                         : b == TOKEN_NONE ? right
                                           : joined->data,
                         left, right);
    /* A pair that stands in the file twice has its last rank, as with Hugging Face. */
    if (key_map_put(&bpe->merges, key_of_pair(a, b), (uint32_t)bpe->merge_count) != 0)
        return error_memory(err, 0, "the merges");
    bpe->merge_list[bpe->merge_count] = (struct merge){(uint32_t)bpe->merge_count, made};
    bpe->merge_count++;
    return 0;
}

int bpe_find_bytes(struct bpe *bpe, const struct vocabulary *v)
{
    int missing = 0;

    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        char text[2];
        bpe->byte_ids[b] = vocabulary_find(v, text, byte_alphabet_encode(&byte, 1, text), TOKEN_IN_MODEL);
        missing += bpe->byte_ids[b] == TOKEN_NONE;
    }
    return missing;
}

void bpe_free(struct bpe *bpe)
{
    key_map_free(&bpe->merges);
    free(bpe->merge_list);
    *bpe = (struct bpe){0};
}

int bpe_scratch_create(struct bpe_scratch **out, struct error *err)
{
    struct bpe_scratch *s = calloc(1, sizeof *s);

    *out = s;
    if (s != NULL)
        s->cache = calloc(CACHE_SLOTS, sizeof *s->cache);
    if (s == NULL || s->cache == NULL) {
        bpe_scratch_free(s);
        *out = NULL;
        return error_memory(err, CACHE_SLOTS * sizeof(struct cache_slot), "the cache of words");
    }
    return 0;
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    if (scratch == NULL)
        return;
    free(scratch->cache);
    free(scratch->symbols);
    free(scratch->heap);
    strbuf_free(&scratch->text);
    free(scratch);
}

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

/* Room was reserved: a word of n bytes has n-1 candidates at first and gets at most two a merge. */
static void heap_push(struct bpe_scratch *s, struct candidate c)
{
    size_t i = s->heap_count++;

    while (i > 0 && comes_before(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static struct candidate heap_pop(struct bpe_scratch *s)
{
    struct candidate top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < s->heap_count) {
        if (child + 1 < s->heap_count && comes_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!comes_before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static const struct merge *find_merge(const struct bpe *bpe, uint32_t left, uint32_t right)
{
    uint32_t number = key_map_find(&bpe->merges, key_of_pair(left, right));

    return number == MAP_NONE ? NULL : &bpe->merge_list[number];
}

/* Puts the merge of the symbol at `position` with the next one in the heap, if there is one. */
static void offer(const struct bpe *bpe, struct bpe_scratch *s, int32_t position)
{
    const struct symbol *left = &s->symbols[position];
    const struct merge *m = find_merge(bpe, left->id, s->symbols[left->next].id);

    if (m != NULL)
        heap_push(s, (struct candidate){m->rank, position, m->id});
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *s)
{
    while (s->heap_count > 0) {
        struct candidate top = heap_pop(s);
        struct symbol *left = &s->symbols[top.position], *right;
        const struct merge *m;
        if (left->id == TOKEN_NONE || left->next < 0)
            continue;
        right = &s->symbols[left->next];
        m = find_merge(bpe, left->id, right->id);
        if (m == NULL || m->id != top.id)
            continue;
        left->id = top.id;
        left->next = right->next;
        right->id = TOKEN_NONE;
        if (left->next >= 0)
            s->symbols[left->next].previous = top.position;
        if (left->previous >= 0)
            offer(bpe, s, left->previous);
        if (left->next >= 0)
            offer(bpe, s, top.position);
    }
}

static int start_word(const struct bpe *bpe, struct bpe_scratch *s, const uint8_t *word, size_t n,
                      struct error *err)
{
    if (array_reserve(&s->symbols, &s->symbol_capacity, n, sizeof *s->symbols) != 0 ||
        array_reserve(&s->heap, &s->heap_capacity, 3 * n, sizeof *s->heap) != 0)
        return error_memory(err, n * (sizeof *s->symbols + 3 * sizeof *s->heap), "a long word");
    s->heap_count = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = bpe->byte_ids[word[i]];
        if (id == TOKEN_NONE)
            return error_set(err, ERROR_INPUT, NULL, "use a tokenizer whose vocabulary holds all 256 bytes",
                             "the byte 0x%02x of the text has no token in the vocabulary", word[i]);
        s->symbols[i] = (struct symbol){id, (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    }
    for (size_t i = 0; i + 1 < n; i++)
        offer(bpe, s, (int32_t)i);
    return 0;
}

/* The token that is the whole word, or TOKEN_NONE. */
static uint32_t whole_word(const struct vocabulary *v, struct bpe_scratch *s, const uint8_t *word, size_t n,
                           struct error *err)
{
    char small[256];
    size_t length;

    if (n <= sizeof small / 2) {
        length = byte_alphabet_encode(word, n, small);
        return vocabulary_find(v, small, length, TOKEN_IN_MODEL);
    }
    strbuf_clear(&s->text);
    for (size_t i = 0; i < n; i++) {
        length = byte_alphabet_encode(word + i, 1, small);
        strbuf_append(&s->text, small, length);
    }
    if (s->text.failed) {
        error_memory(err, 2 * n, "a long word");
        return TOKEN_NONE;
    }
    return vocabulary_find(v, s->text.data, s->text.length, TOKEN_IN_MODEL);
}

static int encode_uncached(const struct bpe *bpe, const struct vocabulary *v, struct bpe_scratch *s,
                           const uint8_t *word, size_t n, struct token_buffer *out, struct error *err)
{
    if (bpe->ignore_merges) {
        uint32_t id = whole_word(v, s, word, n, err);
        if (s->text.failed)
            return -1;
        if (id != TOKEN_NONE) {
            if (token_buffer_reserve(out, 1, err) != 0)
                return -1;
            out->ids[out->count++] = id;
            return 0;
        }
    }
    if (start_word(bpe, s, word, n, err) != 0)
        return -1;
    merge_all(bpe, s);
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next) {
        if (token_buffer_reserve(out, 1, err) != 0)
            return -1;
        out->ids[out->count++] = s->symbols[i].id;
    }
    return 0;
}

int bpe_encode(const struct bpe *bpe, const struct vocabulary *v, struct bpe_scratch *scratch,
               const uint8_t *word, size_t n, struct token_buffer *out, struct error *err)
{
    int64_t first = out->count, count;
    struct cache_slot *slot;

    if (n > CACHE_WORD)
        return encode_uncached(bpe, v, scratch, word, n, out, err);
    slot = &scratch->cache[hash_bytes(word, n, 0) % CACHE_SLOTS];
    if (slot->length == n && memcmp(slot->word, word, n) == 0) {
        if (token_buffer_reserve(out, slot->count, err) != 0)
            return -1;
        memcpy(out->ids + out->count, slot->ids, slot->count * sizeof *slot->ids);
        out->count += slot->count;
        return 0;
    }
    if (encode_uncached(bpe, v, scratch, word, n, out, err) != 0)
        return -1;
    count = out->count - first;
    if (count <= CACHE_IDS) {
        slot->length = (uint8_t)n;
        slot->count = (uint8_t)count;
        memcpy(slot->word, word, n);
        memcpy(slot->ids, out->ids + first, (size_t)count * sizeof *slot->ids);
    }
    return 0;
}
