#include "support/allocations.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static _Atomic int64_t count;
static _Atomic int64_t left = -1;
static atomic_bool once;

int64_t allocations_count(void)
{
    return atomic_load(&count);
}

void allocations_fail_after(int64_t n)
{
    atomic_store(&once, false);
    atomic_store(&left, n);
}

void allocations_fail_once(int64_t n)
{
    atomic_store(&once, true);
    atomic_store(&left, n);
}

static bool granted(void)
{
    atomic_fetch_add(&count, 1);
    int64_t now = atomic_load(&left);
    while (now > 0) {
        if (atomic_compare_exchange_weak(&left, &now, now - 1))
            return true;
    }
    if (now == 0 && atomic_load(&once))
        atomic_store(&left, -1);
    return now < 0;
}

/* The names are the linker's: --wrap=f turns calls of f into __wrap_f, and __real_f into f. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    return granted() ? __real_malloc(size) : NULL;
}

void *__wrap_calloc(size_t n, size_t size)
{
    return granted() ? __real_calloc(n, size) : NULL;
}

void *__wrap_realloc(void *old, size_t size)
{
    return granted() ? __real_realloc(old, size) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return granted() ? __real_aligned_alloc(alignment, size) : NULL;
}
/* NOLINTEND(bugprone-reserved-identifier) */
