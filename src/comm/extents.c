#include "comm/extents.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int extents_take(struct extents *e, size_t bytes, size_t *offset)
{
    if (e->count == e->capacity) {
        size_t capacity = e->capacity ? 2 * e->capacity : 16;
        struct extent *items = realloc(e->items, capacity * sizeof *items);
        if (!items)
            return -1;
        e->items = items;
        e->capacity = capacity;
    }
    size_t at = 0, index = 0;
    for (; index < e->count && e->items[index].offset - at < bytes; index++)
        at = e->items[index].offset + e->items[index].bytes;
    if (bytes > (size_t)INT64_MAX - at) /* as far as a file offset reaches */
        return -1;
    memmove(e->items + index + 1, e->items + index, (e->count - index) * sizeof *e->items);
    e->items[index] = (struct extent){at, bytes};
    e->count++;
    *offset = at;
    return 0;
}

void extents_give(struct extents *e, size_t offset)
{
    size_t index = 0;
    while (index < e->count && e->items[index].offset != offset)
        index++;
    assert(index < e->count);
    e->count--;
    memmove(e->items + index, e->items + index + 1, (e->count - index) * sizeof *e->items);
}

void extents_free(struct extents *e)
{
    free(e->items);
    *e = (struct extents){0};
}
