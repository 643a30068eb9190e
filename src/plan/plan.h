/* The plan of a run as people and programs read it: parameters, data, ranks, memory by item. Every figure
 * comes from the static plan that the run itself allocates by. */
#ifndef TERCET_PLAN_PLAN_H
#define TERCET_PLAN_PLAN_H

#include "base/strbuf.h"
#include "train/run.h"

/* Appends aligned text, a line an item. Check out->failed. */
void plan_text(const struct train_plan *plan, struct strbuf *out);
/* Appends one JSON object. */
void plan_json(const struct train_plan *plan, struct strbuf *out);

#endif
