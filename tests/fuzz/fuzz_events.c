/* TensorBoard event files. An input that begins with 'r' is a row of records as it stands; one that begins
 * with anything else is put into a record with the right checksums, so that its message is looked at. */
#include "fuzz/input.h"

#include "formats/tensorboard.h"

#include <stdlib.h>
#include <string.h>

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t masked(const void *data, size_t n)
{
    uint32_t c = crc32c(data, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static void read_events(const uint8_t *data, size_t size, bool sealed)
{
    struct fuzz_memory memory;
    struct event_reader reader;
    struct event event;
    struct error err;
    int got = -1, seen = 0;
    fuzz_memory_open(&memory, data, size);
    if (event_reader_open(&reader, memory.path, &err) == 0) {
        for (; (got = event_reader_next(&reader, &event, &err)) == 1; seen++) {
            FUZZ_CHECK(event.count >= 0 && event.others >= 0);
            for (int64_t i = 0; i < event.count; i++)
                FUZZ_CHECK(event.scalars[i].tag && strlen(event.scalars[i].tag) < size);
        }
        event_reader_close(&reader);
    }
    FUZZ_CHECK(got == 0 || (err.kind == ERROR_INPUT && err.where[0] != '\0' && err.what[0] != '\0'));
    FUZZ_CHECK(!sealed || seen <= 1);
    fuzz_memory_close(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 'r') {
        read_events(data + 1, size - 1, false);
        return 0;
    }
    uint8_t *record = calloc(1, size + 16);
    FUZZ_CHECK(record && size < UINT32_MAX);
    put_u32(record, (uint32_t)size);
    put_u32(record + 8, masked(record, 8));
    if (size > 0)
        memcpy(record + 12, data, size);
    put_u32(record + 12 + size, masked(data, size));
    read_events(record, size + 16, true);
    free(record);
    return 0;
}
