/* cmocka.h with what it wants included before it. */
#ifndef TERCET_TESTS_CMOCKA_H
#define TERCET_TESTS_CMOCKA_H

/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#endif
