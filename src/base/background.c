#include "base/background.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct background {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t begun, over;
    void (*job)(void *context); /* NULL: none; under the lock */
    void *context;
    bool end;
};

static void *background_main(void *argument)
{
    struct background *b = argument;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (!b->job && !b->end)
            pthread_cond_wait(&b->begun, &b->lock);
        if (!b->job)
            break;
        void (*job)(void *) = b->job;
        void *context = b->context;
        pthread_mutex_unlock(&b->lock);
        job(context);
        pthread_mutex_lock(&b->lock);
        b->job = NULL;
        pthread_cond_broadcast(&b->over);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* Signals are for the thread that made this one; those that a fault raises stay with the faulting one. */
static int start_thread(struct background *b)
{
    sigset_t blocked, before;
    pthread_attr_t attributes;
    int why = pthread_attr_init(&attributes);
    if (why != 0)
        return why;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    why = pthread_attr_setstacksize(&attributes, BACKGROUND_STACK);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    if (why == 0)
        why = pthread_create(&b->thread, &attributes, background_main, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return why;
}

static void release(struct background *b)
{
    pthread_cond_destroy(&b->over);
    pthread_cond_destroy(&b->begun);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

int background_create(struct background **out, struct error *err)
{
    *out = NULL;
    struct background *b = calloc(1, sizeof *b);
    if (!b)
        return error_memory(err, sizeof *b, "a background thread");
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->begun, NULL);
    pthread_cond_init(&b->over, NULL);
    int why = start_thread(b);
    if (why != 0) {
        release(b);
        return error_errno(err, why, NULL, "start a thread");
    }
    *out = b;
    return 0;
}

void background_free(struct background *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&b->lock);
    b->end = true;
    pthread_cond_signal(&b->begun);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    release(b);
}

void background_start(struct background *b, void (*job)(void *context), void *context)
{
    pthread_mutex_lock(&b->lock);
    assert(!b->job);
    b->job = job;
    b->context = context;
    pthread_cond_signal(&b->begun);
    pthread_mutex_unlock(&b->lock);
}

bool background_busy(struct background *b)
{
    pthread_mutex_lock(&b->lock);
    bool busy = b->job != NULL;
    pthread_mutex_unlock(&b->lock);
    return busy;
}

void background_wait(struct background *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->job)
        pthread_cond_wait(&b->over, &b->lock);
    pthread_mutex_unlock(&b->lock);
}
