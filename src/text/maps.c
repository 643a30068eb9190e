#include "text/maps.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

#define KEY_FREE UINT64_MAX

int array_reserve(void *array, size_t *capacity, size_t need, size_t size)
{
    void *old, *grown;
    size_t room = *capacity;

    if (need <= room)
        return 0;
    if (need > SIZE_MAX / 2 / size)
        return -1;
    room = room < 16 ? 16 : room;
    while (room < need)
        room += room / 2;
    memcpy(&old, array, sizeof old);
    grown = realloc(old, room * size);
    if (grown == NULL)
        return -1;
    memcpy(array, &grown, sizeof grown);
    *capacity = room;
    return 0;
}

/* The finaliser of SplitMix64: spreads ids that lie close together. */
static size_t key_slot(uint64_t key, size_t slots)
{
    key ^= key >> 30;
    key *= UINT64_C(0xbf58476d1ce4e5b9);
    key ^= key >> 27;
    key *= UINT64_C(0x94d049bb133111eb);
    key ^= key >> 31;
    return (size_t)key & (slots - 1);
}

/* The slot of the key, or the free one where it would stand. */
static size_t key_probe(const struct key_map *map, uint64_t key)
{
    size_t slot = key_slot(key, map->slots);

    while (map->keys[slot] != KEY_FREE && map->keys[slot] != key)
        slot = (slot + 1) & (map->slots - 1);
    return slot;
}

uint32_t key_map_find(const struct key_map *map, uint64_t key)
{
    size_t slot;

    if (map->slots == 0)
        return MAP_NONE;
    slot = key_probe(map, key);
    return map->keys[slot] == key ? map->values[slot] : MAP_NONE;
}

static int key_map_grow(struct key_map *map)
{
    struct key_map grown = {.slots = map->slots == 0 ? 64 : map->slots * 2, .count = map->count};

    if (grown.slots > SIZE_MAX / 2 / sizeof *grown.keys)
        return -1;
    grown.keys = malloc(grown.slots * sizeof *grown.keys);
    grown.values = malloc(grown.slots * sizeof *grown.values);
    if (grown.keys == NULL || grown.values == NULL) {
        key_map_free(&grown);
        return -1;
    }
    memset(grown.keys, 0xff, grown.slots * sizeof *grown.keys);
    for (size_t i = 0; i < map->slots; i++) {
        if (map->keys[i] == KEY_FREE)
            continue;
        size_t slot = key_probe(&grown, map->keys[i]);
        grown.keys[slot] = map->keys[i];
        grown.values[slot] = map->values[i];
    }
    free(map->keys);
    free(map->values);
    map->keys = grown.keys;
    map->values = grown.values;
    map->slots = grown.slots;
    return 0;
}

int key_map_put(struct key_map *map, uint64_t key, uint32_t value)
{
    size_t slot;

    if ((map->count + 1) * 3 > map->slots * 2 && key_map_grow(map) != 0)
        return -1;
    slot = key_probe(map, key);
    if (map->keys[slot] == KEY_FREE) {
        map->keys[slot] = key;
        map->count++;
    }
    map->values[slot] = value;
    return 0;
}

void key_map_free(struct key_map *map)
{
    free(map->keys);
    free(map->values);
    *map = (struct key_map){0};
}

static size_t byte_probe(const struct byte_map *map, const void *bytes, size_t n, uint32_t hash)
{
    size_t slot = hash & (map->slots - 1);

    while (map->table[slot] != 0) {
        const struct byte_map_entry *e = &map->entries[map->table[slot] - 1];
        if (e->hash == hash && e->length == n && memcmp(map->bytes + e->offset, bytes, n) == 0)
            break;
        slot = (slot + 1) & (map->slots - 1);
    }
    return slot;
}

static uint32_t byte_hash(const void *bytes, size_t n)
{
    return (uint32_t)(hash_bytes(bytes, n, 0) >> 32);
}

uint32_t byte_map_find(const struct byte_map *map, const void *bytes, size_t n)
{
    size_t slot;

    if (map->slots == 0)
        return MAP_NONE;
    slot = byte_probe(map, bytes, n, byte_hash(bytes, n));
    return map->table[slot] - 1; /* a free slot's 0 wraps to MAP_NONE */
}

static int byte_map_grow(struct byte_map *map)
{
    size_t slots = map->slots == 0 ? 64 : map->slots * 2;
    uint32_t *table = calloc(slots, sizeof *table);

    if (table == NULL)
        return -1;
    for (size_t i = 0; i < map->count; i++) {
        size_t slot = map->entries[i].hash & (slots - 1);
        while (table[slot] != 0)
            slot = (slot + 1) & (slots - 1);
        table[slot] = (uint32_t)i + 1;
    }
    free(map->table);
    map->table = table;
    map->slots = slots;
    return 0;
}

int byte_map_add(struct byte_map *map, const void *bytes, size_t n, uint32_t *index)
{
    uint32_t hash = byte_hash(bytes, n);
    size_t slot;

    if ((map->count + 1) * 3 > map->slots * 2 && byte_map_grow(map) != 0)
        return -1;
    slot = byte_probe(map, bytes, n, hash);
    if (map->table[slot] != 0) {
        *index = map->table[slot] - 1;
        return 0;
    }
    if (n >= UINT32_MAX || map->count >= MAP_NONE - 1)
        return -1;
    if (array_reserve(&map->entries, &map->entry_capacity, map->count + 1, sizeof *map->entries) != 0 ||
        array_reserve(&map->bytes, &map->bytes_capacity, map->bytes_used + n + 1, 1) != 0)
        return -1;
    map->entries[map->count] = (struct byte_map_entry){map->bytes_used, (uint32_t)n, hash};
    if (n > 0)
        memcpy(map->bytes + map->bytes_used, bytes, n);
    map->bytes[map->bytes_used + n] = 0;
    map->bytes_used += n + 1;
    *index = (uint32_t)map->count++;
    map->table[slot] = *index + 1;
    return 1;
}

const char *byte_map_key(const struct byte_map *map, uint32_t index, size_t *n)
{
    const struct byte_map_entry *e = &map->entries[index];

    if (n != NULL)
        *n = e->length;
    return map->bytes + e->offset;
}

void byte_map_free(struct byte_map *map)
{
    free(map->entries);
    free(map->table);
    free(map->bytes);
    *map = (struct byte_map){0};
}
