/* Memory and transfers of backends that compute in the process's own memory, at once: an enqueued
 * transfer is done when the call returns, streams and events have nothing to wait for. */
#ifndef TERCET_BACKEND_HOST_MEMORY_H
#define TERCET_BACKEND_HOST_MEMORY_H

#include "backend/backend.h"

int host_alloc(struct backend *b, enum memory_kind kind, size_t bytes, void **out, struct error *err);
void host_free(struct backend *b, void *memory);
int host_adopt(struct backend *b, void *memory, size_t bytes, struct error *err);
void host_disown(struct backend *b, void *memory);
int host_upload(struct backend *b, int stream, void *device, const void *host, size_t bytes,
                struct error *err);
int host_download(struct backend *b, int stream, void *host, const void *device, size_t bytes,
                  struct error *err);
int host_read(struct backend *b, void *host, const void *device, size_t bytes, struct error *err);
int host_copy(struct backend *b, int stream, void *to, const void *from, size_t bytes, struct error *err);
int host_record(struct backend *b, int stream, int event, struct error *err);
int host_stream_wait(struct backend *b, int stream, int event, struct error *err);
int host_event_sync(struct backend *b, int event, struct error *err);
int host_sync(struct backend *b, int stream, struct error *err);
int host_access(struct backend *b, void *memory, size_t bytes, struct error *err);

#endif
