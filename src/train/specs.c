#include "train/specs.h"

#include <stdlib.h>

bool model_specs_owns(const struct model *m, int unit, int param)
{
    return m->units[unit].params[param].unit == unit;
}

bool model_specs_referred(const struct model *m, int unit, int param)
{
    for (int u = 0; u < m->unit_count; u++)
        for (int k = 0; u != unit && k < m->units[u].param_count; k++)
            if (m->units[u].params[k].unit == unit && m->units[u].params[k].index == param)
                return true;
    return false;
}

void model_specs_free(struct model_specs *s)
{
    free(s->units);
    free(s->elements);
    free(s->decay);
    *s = (struct model_specs){0};
}

int model_specs_create(struct model_specs *s, const struct model *m, struct error *err)
{
    size_t params = 1, units = m->unit_count > 0 ? (size_t)m->unit_count : 1;
    for (int u = 0; u < m->unit_count; u++)
        params += (size_t)m->units[u].param_count;
    *s = (struct model_specs){calloc(units, sizeof *s->units), calloc(params, sizeof *s->elements),
                              calloc(params, sizeof *s->decay)};
    if (!s->units || !s->elements || !s->decay) {
        model_specs_free(s);
        return error_memory(err, params * sizeof *s->elements, "the model's layout");
    }
    size_t at = 0;
    for (int u = 0; u < m->unit_count; u++) {
        struct shard_unit_spec *spec = &s->units[u];
        spec->elements = s->elements + at;
        spec->decay = s->decay + at;
        for (int k = 0; k < m->units[u].param_count; k++) {
            if (!model_specs_owns(m, u, k))
                continue;
            s->elements[at] = model_param_elements(&m->units[u].params[k]);
            s->decay[at++] = m->units[u].params[k].decay;
            spec->param_count++;
        }
    }
    for (int u = 0; u < m->unit_count; u++)
        for (int k = 0; k < m->units[u].param_count; k++)
            if (!model_specs_owns(m, u, k))
                s->units[m->units[u].params[k].unit].referred = true;
    return 0;
}
