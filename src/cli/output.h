/* The end of standard output. Private to the room: main.c asks for it, report.c does it. */
#ifndef TERCET_CLI_OUTPUT_H
#define TERCET_CLI_OUTPUT_H

/* For atexit, so that argp's help passes through it too: writes what is buffered, and ends the program
 * with 1 and a message when standard output could not take all that was printed. */
void output_finish(void);

#endif
