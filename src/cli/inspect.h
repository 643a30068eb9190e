/* Parts of tercet inspect. */
#ifndef TERCET_CLI_INSPECT_H
#define TERCET_CLI_INSPECT_H

#include "base/error.h"
#include "base/strbuf.h"

#include <stdbool.h>

/* Appends what an event file holds, one line (or JSON object) a tag. Of a file that is damaged or still being
 * written, what could be read is appended and -1 returned. */
int inspect_events(const char *path, bool json, struct strbuf *out, struct error *err);

#endif
