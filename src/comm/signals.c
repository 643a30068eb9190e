#include "comm/signals.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

void signals_block(struct signals *s, bool children, bool second_kills)
{
    *s = (struct signals){.second_kills = second_kills};
    sigemptyset(&s->wanted);
    sigaddset(&s->wanted, SIGTERM);
    sigaddset(&s->wanted, SIGINT);
    if (children)
        sigaddset(&s->wanted, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &s->wanted, &s->before);
}

/* sigtimedwait, gone on with after other signals (SIGCONT, as launchers send it first) have cut it short. */
static int take(const sigset_t *wanted, double seconds)
{
    double end = clock_seconds() + seconds;
    for (;;) {
        struct timespec limit = {.tv_sec = (time_t)seconds};
        limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
        int number = sigtimedwait(wanted, NULL, &limit);
        if (number >= 0 || errno != EINTR)
            return number;
        seconds = end - clock_seconds();
        if (seconds < 0)
            seconds = 0;
    }
}

int signals_wait(struct signals *s, double seconds, bool *second)
{
    *second = false;
    int number = take(&s->wanted, seconds);
    if (number != SIGTERM && number != SIGINT)
        return number > 0 ? number : 0;
    double now = clock_seconds();
    if (s->first == 0) {
        s->first = number;
        s->first_time = now;
    } else if (now - s->first_time > SIGNALS_REPEAT_SECONDS)
        *second = true;
    return number;
}

int signals_poll(struct signals *s)
{
    if (s->unblocked)
        return s->first;
    bool second;
    while (signals_wait(s, 0, &second) != 0)
        continue;
    if (s->second_kills && s->first != 0 && clock_seconds() - s->first_time > SIGNALS_REPEAT_SECONDS) {
        pthread_sigmask(SIG_UNBLOCK, &s->wanted, NULL);
        s->unblocked = true;
    }
    return s->first;
}

void signals_restore(struct signals *s)
{
    bool second;
    pthread_sigmask(SIG_BLOCK, &s->wanted, NULL);
    while (signals_wait(s, 0, &second) != 0)
        continue;
    pthread_sigmask(SIG_SETMASK, &s->before, NULL);
}
