#include "text/characters.h"
#include "text/internal.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

int added_set_add(struct added_set *set, const struct added_token *token, struct error *err)
{
    char *content = malloc(token->length + 1);

    if (content == NULL ||
        array_reserve(&set->items, &set->capacity, set->count + 1, sizeof *set->items) != 0) {
        free(content);
        return error_memory(err, token->length, "added tokens");
    }
    memcpy(content, token->content, token->length);
    content[token->length] = 0;
    set->items[set->count] = *token;
    set->items[set->count++].content = content;
    return 0;
}

static int compare_content(const void *x, const void *y)
{
    const struct added_token *a = x, *b = y;
    int order = memcmp(a->content, b->content, a->length < b->length ? a->length : b->length);

    return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

void added_set_finish(struct added_set *set)
{
    if (set->count > 0)
        qsort(set->items, set->count, sizeof *set->items, compare_content);
    for (size_t i = 0; i < set->count; i++)
        set->first[(uint8_t)set->items[i].content[0]] = true;
}

void added_set_free(struct added_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        free((void *)set->items[i].content);
    free(set->items);
    *set = (struct added_set){0};
}

/* The first of items[low … high-1], all longer than `depth`, whose byte there is at least `byte`. */
static size_t lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uint8_t)set->items[middle].content[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token at the start of s, or NULL. */
static const struct added_token *longest_at(const struct added_set *set, const uint8_t *s, size_t n)
{
    const struct added_token *best = NULL;
    size_t low = 0, high = set->count;

    for (size_t depth = 0; depth < n && low < high; depth++) {
        low = lower_bound(set, low, high, depth, s[depth]);
        high = lower_bound(set, low, high, depth, s[depth] + 1u);
        if (low < high && set->items[low].length == depth + 1)
            best = &set->items[low++]; /* the shortest stands first */
    }
    return best;
}

static bool stands_alone(const uint8_t *s, size_t n, size_t start, size_t stop)
{
    size_t at = start;

    if (start > 0 && character_is_word(utf8_previous(s, start, &at)))
        return false;
    at = stop;
    return stop == n || !character_is_word(utf8_next(s, &at));
}

/* Takes in the white space that a token's flags ask for, to the left not beyond `limit`. */
static void widen(const struct added_token *t, const uint8_t *s, size_t n, size_t limit, size_t *start,
                  size_t *stop)
{
    size_t at;

    while (t->left_space && *start > limit && character_is_space(utf8_previous(s, *start, &at)))
        *start = at < limit ? limit : at;
    at = *stop;
    while (t->right_space && at < n && character_is_space(utf8_next(s, &at)))
        *stop = at;
}

int added_set_split(const struct added_set *set, const uint8_t *s, size_t n, bool special_too,
                    int (*gap)(void *context, const uint8_t *s, size_t n),
                    int (*found)(void *context, uint32_t id), void *context)
{
    size_t done = 0, at = 0; /* `done`: up to where gaps and tokens were reported */

    while (at < n && set->count > 0) {
        const struct added_token *t;
        size_t start, stop;
        if (!set->first[s[at]] || (t = longest_at(set, s + at, n - at)) == NULL) {
            at++;
            continue;
        }
        start = at;
        stop = at + t->length;
        at = stop;
        if ((t->special && !special_too) || (t->single_word && !stands_alone(s, n, start, stop)))
            continue;
        widen(t, s, n, done, &start, &stop);
        if ((start > done && gap(context, s + done, start - done) != 0) || found(context, t->id) != 0)
            return -1;
        done = stop;
    }
    return done < n ? gap(context, s + done, n - done) : 0;
}
