#include "backend/cpu/kernels/attention_grad.h"
#include "backend/cpu/kernels/flat.h"
#include "backend/cpu/kernels/product.h"
#include "backend/cpu/kernels/row.h"

const struct cpu_kernels cpu_kernels_avx512 = {&flat_kernels, &row_kernels, &attention_kernels,
                                               &product_kernels};
