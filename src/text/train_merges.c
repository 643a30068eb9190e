#include "text/train_merges.h"

#include "base/strbuf.h"
#include "text/byte_alphabet.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct word {
    size_t start; /* in symbols */
    uint32_t length;
    int64_t count;
};

struct word_list {
    uint32_t *words;
    size_t count, capacity;
};

struct pair_info {
    uint64_t key;
    int64_t count;
    struct word_list seen; /* since the last entry of this pair was made */
    bool listed;           /* among the changed pairs */
};

struct entry {
    uint64_t key;
    int64_t count;
    uint32_t pair;   /* its number */
    uint64_t number; /* of the entry: of equals, the older one goes first */
    struct word_list seen;
};

struct finder {
    struct bpe_merges *out;
    struct word *words;
    uint32_t *symbols;
    size_t word_count;
    struct key_map numbers; /* of pairs */
    struct pair_info *pairs;
    size_t pair_count, pair_capacity;
    uint32_t *changed; /* pairs whose count changed since the last merge */
    size_t changed_count, changed_capacity;
    struct entry *heap;
    size_t heap_count, heap_capacity;
    uint64_t entries_made;
    struct strbuf joined;
};

void bpe_merges_free(struct bpe_merges *merges)
{
    byte_map_free(&merges->tokens);
    free(merges->pairs);
    *merges = (struct bpe_merges){0};
}

static void finder_free(struct finder *f)
{
    for (size_t i = 0; i < f->pair_count; i++)
        free(f->pairs[i].seen.words);
    for (size_t i = 0; i < f->heap_count; i++)
        free(f->heap[i].seen.words);
    free(f->words);
    free(f->symbols);
    key_map_free(&f->numbers);
    free(f->pairs);
    free(f->changed);
    free(f->heap);
    strbuf_free(&f->joined);
}

/* ---- the heap: most frequent first, then smaller ids ------------------------------------------- */

static bool comes_before(const struct entry *a, const struct entry *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    if (a->key != b->key)
        return a->key < b->key;
    return a->number < b->number;
}

static int heap_push(struct finder *f, struct entry e)
{
    size_t i = f->heap_count;

    if (array_reserve(&f->heap, &f->heap_capacity, i + 1, sizeof *f->heap) != 0)
        return -1;
    f->heap_count++;
    while (i > 0 && comes_before(&e, &f->heap[(i - 1) / 2])) {
        f->heap[i] = f->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    f->heap[i] = e;
    return 0;
}

static struct entry heap_pop(struct finder *f)
{
    struct entry top = f->heap[0], last = f->heap[--f->heap_count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < f->heap_count) {
        if (child + 1 < f->heap_count && comes_before(&f->heap[child + 1], &f->heap[child]))
            child++;
        if (!comes_before(&f->heap[child], &last))
            break;
        f->heap[i] = f->heap[child];
        i = child;
    }
    f->heap[i] = last;
    return top;
}

/* ---- pairs -------------------------------------------------------------------------------------- */

/* Changes the count of a pair by occurrences in one word. */
static int change_pair(struct finder *f, uint32_t left, uint32_t right, int64_t by, uint32_t word)
{
    uint64_t key = key_of_pair(left, right);
    uint32_t number = key_map_find(&f->numbers, key);
    struct pair_info *p;

    if (number == MAP_NONE) {
        if (f->pair_count >= MAP_NONE - 1 ||
            array_reserve(&f->pairs, &f->pair_capacity, f->pair_count + 1, sizeof *f->pairs) != 0 ||
            key_map_put(&f->numbers, key, (uint32_t)f->pair_count) != 0)
            return -1;
        number = (uint32_t)f->pair_count++;
        f->pairs[number] = (struct pair_info){.key = key};
    }
    p = &f->pairs[number];
    p->count += by;
    if (by < 0)
        return 0;
    if (!p->listed) {
        if (array_reserve(&f->changed, &f->changed_capacity, f->changed_count + 1, sizeof *f->changed) != 0)
            return -1;
        f->changed[f->changed_count++] = number;
        p->listed = true;
    }
    if (p->seen.count > 0 && p->seen.words[p->seen.count - 1] == word)
        return 0; /* words come one after the other */
    if (array_reserve(&p->seen.words, &p->seen.capacity, p->seen.count + 1, sizeof *p->seen.words) != 0)
        return -1;
    p->seen.words[p->seen.count++] = word;
    return 0;
}

/* Makes an entry for each pair that became more frequent somewhere. */
static int push_changed(struct finder *f)
{
    for (size_t i = 0; i < f->changed_count; i++) {
        struct pair_info *p = &f->pairs[f->changed[i]];
        struct entry e = {p->key, p->count, f->changed[i], f->entries_made++, p->seen};
        p->listed = false;
        if (p->count > 0) {
            if (heap_push(f, e) != 0)
                return -1;
        } else {
            free(p->seen.words);
        }
        p->seen = (struct word_list){0};
    }
    f->changed_count = 0;
    return 0;
}

/* Joins `left right` wherever they stand in a word. The count of the pair itself is left as it is, as
 * Hugging Face does: it only matters where one token comes about in two ways. */
static int merge_in_word(struct finder *f, uint32_t number, uint32_t left, uint32_t right, uint32_t made)
{
    struct word *w = &f->words[number];
    uint32_t *s = f->symbols + w->start;
    uint32_t used = 0; /* s[0 … used-1] is the new word so far */

    for (uint32_t i = 0; i < w->length; i++) {
        if (s[i] != left || i + 1 >= w->length || s[i + 1] != right) {
            s[used++] = s[i];
            continue;
        }
        if (used > 0 && (change_pair(f, s[used - 1], left, -w->count, number) != 0 ||
                         change_pair(f, s[used - 1], made, w->count, number) != 0))
            return -1;
        if (i + 2 < w->length && (change_pair(f, right, s[i + 2], -w->count, number) != 0 ||
                                  change_pair(f, made, s[i + 2], w->count, number) != 0))
            return -1;
        s[used++] = made;
        i++;
    }
    w->length = used;
    return 0;
}

/* ---- the start: ids of bytes, words as symbols, counts of pairs --------------------------------- */

struct sorted_word {
    const char *bytes;
    size_t length;
    int64_t count;
};

static int compare_words(const void *x, const void *y)
{
    const struct sorted_word *a = x, *b = y;
    int order = memcmp(a->bytes, b->bytes, a->length < b->length ? a->length : b->length);

    return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

/* Ids of bytes ascend with the characters that stand for them. */
static int add_bytes(struct finder *f, const char *special, uint32_t ids[256])
{
    uint32_t id;

    if (byte_map_add(&f->out->tokens, special, strlen(special), &id) < 0)
        return -1;
    for (uint32_t c = 0; c < 0x200; c++) {
        int byte = byte_alphabet_byte(c);
        uint8_t text = (uint8_t)byte;
        if (byte >= 0 && byte_map_add(&f->out->tokens, &text, 1, &ids[byte]) < 0)
            return -1;
    }
    return 0;
}

/* In the order of their bytes, so that nothing depends on the order of the text. */
static struct sorted_word *sort_words(const struct byte_map *words, const int64_t *counts)
{
    struct sorted_word *sorted = calloc(words->count, sizeof *sorted);

    for (size_t i = 0; sorted != NULL && i < words->count; i++) {
        sorted[i].bytes = byte_map_key(words, (uint32_t)i, &sorted[i].length);
        sorted[i].count = counts[i];
    }
    if (sorted != NULL)
        qsort(sorted, words->count, sizeof *sorted, compare_words);
    return sorted;
}

static int lay_out_words(struct finder *f, const struct byte_map *words, const int64_t *counts,
                         const uint32_t ids[256])
{
    struct sorted_word *sorted = sort_words(words, counts);
    size_t used = 0;

    f->words = calloc(words->count, sizeof *f->words);
    f->symbols = calloc(words->bytes_used, sizeof *f->symbols);
    if (sorted == NULL || f->words == NULL || f->symbols == NULL) {
        free(sorted);
        return -1;
    }
    f->word_count = words->count;
    for (size_t i = 0; i < f->word_count; i++) {
        f->words[i] = (struct word){used, (uint32_t)sorted[i].length, sorted[i].count};
        for (size_t k = 0; k < sorted[i].length; k++)
            f->symbols[used++] = ids[(uint8_t)sorted[i].bytes[k]];
    }
    free(sorted);
    return 0;
}

static int count_pairs(struct finder *f)
{
    for (size_t i = 0; i < f->word_count; i++) {
        const struct word *w = &f->words[i];
        const uint32_t *s = f->symbols + w->start;
        for (uint32_t k = 0; k + 1 < w->length; k++)
            if (change_pair(f, s[k], s[k + 1], w->count, (uint32_t)i) != 0)
                return -1;
    }
    return push_changed(f);
}

/* ---- the loop ----------------------------------------------------------------------------------- */

/* The id of the token that a pair makes: a new one, unless another pair made the same. */
static int make_token(struct finder *f, uint32_t left, uint32_t right, uint32_t *made)
{
    struct bpe_merges *m = f->out;
    size_t n;
    const char *text;

    strbuf_clear(&f->joined);
    text = byte_map_key(&m->tokens, left, &n);
    strbuf_append(&f->joined, text, n);
    text = byte_map_key(&m->tokens, right, &n);
    strbuf_append(&f->joined, text, n);
    if (f->joined.failed || byte_map_add(&m->tokens, f->joined.data, f->joined.length, made) < 0 ||
        array_reserve(&m->pairs, &m->capacity, m->count + 1, sizeof *m->pairs) != 0)
        return -1;
    m->pairs[m->count++] = (struct bpe_pair){left, right};
    return 0;
}

static int apply(struct finder *f, const struct entry *e)
{
    uint32_t left = (uint32_t)(e->key >> 32), right = (uint32_t)e->key, made;

    if (make_token(f, left, right, &made) != 0)
        return -1;
    for (size_t i = 0; i < e->seen.count; i++)
        if (merge_in_word(f, e->seen.words[i], left, right, made) != 0)
            return -1;
    return push_changed(f);
}

static int find_all(struct finder *f, const struct bpe_options *options)
{
    struct bpe_merges *m = f->out;
    int status = 0;

    while (status == 0 && m->tokens.count < (size_t)options->vocab_size && f->heap_count > 0) {
        struct entry top = heap_pop(f);
        int64_t count = f->pairs[top.pair].count;
        if (top.count != count) {
            top.count = count;
            status = heap_push(f, top); /* there is room: it just left */
            continue;
        }
        if (count < 1 || count < options->min_frequency) {
            free(top.seen.words);
            break;
        }
        status = apply(f, &top);
        free(top.seen.words);
        if (m->count % 64 == 0)
            log_progress(options->log, false, "tokenizer: %zu of %lld tokens", m->tokens.count,
                         (long long)options->vocab_size);
    }
    return status;
}

int bpe_merges_find(struct bpe_merges *out, const struct byte_map *words, const int64_t *counts,
                    const char *special, const struct bpe_options *options, struct error *err)
{
    struct finder f = {.out = out};
    uint32_t ids[256];
    int status;

    status = add_bytes(&f, special, ids) != 0 || lay_out_words(&f, words, counts, ids) != 0 ||
             count_pairs(&f) != 0 || find_all(&f, options) != 0;
    finder_free(&f);
    if (status != 0)
        return error_memory(err, words->bytes_used * sizeof(uint32_t), "training a tokenizer");
    log_progress(options->log, true, "tokenizer: %zu tokens, %zu merges", out->tokens.count, out->count);
    return 0;
}
