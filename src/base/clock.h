/* Time. clock_seconds() is monotonic, for durations; clock_wall() is seconds since 1970. */
#ifndef TERCET_BASE_CLOCK_H
#define TERCET_BASE_CLOCK_H

double clock_seconds(void);
double clock_wall(void);

#endif
