#include "backend/host_memory.h"

#include <stdlib.h>
#include <string.h>

int host_alloc(struct backend *b, enum memory_kind kind, size_t bytes, void **out, struct error *err)
{
    (void)b;
    (void)kind;
    if (bytes > SIZE_MAX - 64)
        return error_memory(err, bytes, "a backend buffer");
    size_t rounded = bytes == 0 ? 64 : (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded);
    if (!memory)
        return error_memory(err, bytes, "a backend buffer");
    memset(memory, 0, rounded);
    *out = memory;
    return 0;
}

void host_free(struct backend *b, void *memory)
{
    (void)b;
    free(memory);
}

int host_adopt(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    (void)b;
    (void)memory;
    (void)bytes;
    (void)err;
    return 0;
}

void host_disown(struct backend *b, void *memory)
{
    (void)b;
    (void)memory;
}

int host_copy(struct backend *b, int stream, void *to, const void *from, size_t bytes, struct error *err)
{
    (void)b;
    (void)stream;
    (void)err;
    if (bytes > 0)
        memmove(to, from, bytes);
    return 0;
}

int host_upload(struct backend *b, int stream, void *device, const void *host, size_t bytes,
                struct error *err)
{
    return host_copy(b, stream, device, host, bytes, err);
}

int host_download(struct backend *b, int stream, void *host, const void *device, size_t bytes,
                  struct error *err)
{
    return host_copy(b, stream, host, device, bytes, err);
}

int host_read(struct backend *b, void *host, const void *device, size_t bytes, struct error *err)
{
    return host_copy(b, 0, host, device, bytes, err);
}

int host_record(struct backend *b, int stream, int event, struct error *err)
{
    (void)b;
    (void)stream;
    (void)event;
    (void)err;
    return 0;
}

int host_stream_wait(struct backend *b, int stream, int event, struct error *err)
{
    return host_record(b, stream, event, err);
}

int host_event_sync(struct backend *b, int event, struct error *err)
{
    return host_record(b, 0, event, err);
}

int host_sync(struct backend *b, int stream, struct error *err)
{
    return host_record(b, stream, 0, err);
}

int host_access(struct backend *b, void *memory, size_t bytes, struct error *err)
{
    (void)b;
    (void)memory;
    (void)bytes;
    (void)err;
    return 0;
}
