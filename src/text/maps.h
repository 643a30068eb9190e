/* Two hash tables with open addressing: numbers to small numbers, and byte strings to 0, 1, 2 …
 *
 * Both are zero-initialised, grow as needed, never forget a key, and are read by any number of threads
 * once nobody adds. Adding returns -1 when memory runs out and then changed nothing. */
#ifndef TERCET_TEXT_MAPS_H
#define TERCET_TEXT_MAPS_H

#include <stddef.h>
#include <stdint.h>

#define MAP_NONE UINT32_MAX

/* A pair of token ids, or any number but UINT64_MAX, to a value. */
struct key_map {
    uint64_t *keys;
    uint32_t *values;
    size_t slots, count;
};
static inline uint64_t key_of_pair(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}
/* MAP_NONE where the key is missing. */
uint32_t key_map_find(const struct key_map *map, uint64_t key);
/* Adds or replaces. */
int key_map_put(struct key_map *map, uint64_t key, uint32_t value);
void key_map_free(struct key_map *map);

/* Byte strings to the numbers 0 … count-1 in the order in which they came. */
struct byte_map {
    struct byte_map_entry *entries;
    uint32_t *table; /* entry + 1; 0 is free */
    char *bytes;
    size_t slots, count, entry_capacity, bytes_used, bytes_capacity;
};
struct byte_map_entry {
    size_t offset;
    uint32_t length, hash;
};
/* MAP_NONE where the string is missing. */
uint32_t byte_map_find(const struct byte_map *map, const void *bytes, size_t n);
/* *index becomes the number of the string. Returns 1 when it is new, 0 when it was there, -1 when memory
 * or the numbers (2^32 - 1) ran out. n is less than 2^32. */
int byte_map_add(struct byte_map *map, const void *bytes, size_t n, uint32_t *index);
/* The string of a number, terminated by a NUL that *n does not count; valid until the next add. */
const char *byte_map_key(const struct byte_map *map, uint32_t index, size_t *n);
void byte_map_free(struct byte_map *map);

/* Makes *array (elements of `size` bytes, room for *capacity) hold `need` elements. 0 or -1. */
int array_reserve(void *array, size_t *capacity, size_t need, size_t size);

#endif
