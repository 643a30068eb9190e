/* Of the preloaded library libfaults.so; see faults.c for what it does and how it is told. */
#ifndef TERCET_TESTS_FAULTS_H
#define TERCET_TESTS_FAULTS_H

#include <dlfcn.h>

/* The function of this name that would be called if this library were not there. */
#define NEXT(function)                                                                                       \
    ({                                                                                                       \
        static __typeof__(&(function)) next_;                                                                \
        if (!next_)                                                                                          \
            next_ = (__typeof__(&(function)))dlsym(RTLD_NEXT, #function);                                    \
        next_;                                                                                               \
    })

/* Where the function that contains this was called. */
#define CALLER __builtin_return_address(0)

/* Counts a call of `function`; not zero when it is to fail: errno is then `problem`. */
int fault_due(const char *function, int problem, const void *caller);
/* In a process that fork has just made: it is the next rank and has called nothing yet. */
void fault_forked(void);

#endif
