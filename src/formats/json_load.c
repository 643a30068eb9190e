/* Where jansson (2.14) cannot enlarge the buffer in which it collects a string or number, it loses a
 * character and goes on, or stumbles over an assertion; all its other allocations are checked. So it
 * allocates through functions that note a failure, and then give what may be such a buffer from a reserve:
 * jansson comes to its next checked allocation, or to the end of the text, and nothing of the result is used.
 */
#include "formats/json_load.h"

#include <stdint.h>
#include <stdlib.h>

/* The allocator is handed no context: this is where a thread keeps it during json_load. */
static _Thread_local struct {
    char *memory;
    size_t size, used;
    bool failed;
} reserve;

static void *watched_malloc(size_t size)
{
    void *memory = malloc(size);
    if (memory)
        return memory;
    reserve.failed = true;
    bool may_be_buffer = size > 16 && (size & (size - 1)) == 0; /* it begins with 16 bytes and doubles */
    if (!may_be_buffer || size > reserve.size - reserve.used)
        return NULL;
    memory = reserve.memory + reserve.used;
    reserve.used += size;
    return memory;
}

static void watched_free(void *memory)
{
    uintptr_t first = (uintptr_t)reserve.memory, at = (uintptr_t)memory;
    if (at < first || at - first >= reserve.size)
        free(memory);
}

json_t *json_load(const char *text, size_t size, bool *no_memory, json_error_t *problem)
{
    json_malloc_t allocate;
    json_get_alloc_funcs(&allocate, NULL);
    if (allocate != watched_malloc)
        json_set_alloc_funcs(watched_malloc, watched_free);
    /* The buffer is less than twice as long as the text, and all that it was before no longer than that. */
    reserve.size = size < SIZE_MAX / 8 ? 4 * size + 64 : SIZE_MAX;
    reserve.memory = malloc(reserve.size);
    reserve.used = 0;
    reserve.failed = reserve.memory == NULL;
    json_t *root = NULL;
    if (!reserve.failed)
        root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, problem);
    *no_memory = reserve.failed;
    if (reserve.failed) {
        json_decref(root); /* while what lies in the reserve is known as such */
        root = NULL;
    }
    free(reserve.memory);
    reserve.memory = NULL;
    reserve.size = reserve.used = 0;
    return root;
}
