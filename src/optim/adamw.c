#include "optim/adamw.h"

#include <math.h>

void adamw_update(const struct adamw *a, double lr, int64_t update, double norm, struct op_adamw *out)
{
    double t = (double)(update + 1), scale = 1;
    if (a->clip > 0 && a->clip / (norm + 1e-6) < 1)
        scale = a->clip / (norm + 1e-6);
    *out = (struct op_adamw){.lr = (float)lr,
                             .beta1 = (float)a->beta1,
                             .beta2 = (float)a->beta2,
                             .eps = (float)a->eps,
                             .weight_decay = (float)a->weight_decay,
                             .correction1 = (float)(1 - pow(a->beta1, t)),
                             .correction2 = (float)(1 - pow(a->beta2, t)),
                             .gradient_scale = (float)scale};
}
