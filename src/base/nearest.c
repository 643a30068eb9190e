#include "base/nearest.h"

#include <ctype.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 64 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

int nearest_distance(const char *a, const char *b)
{
    int rows[3][NAME_MAX_LENGTH + 1];
    int n = (int)strnlen(a, NAME_MAX_LENGTH + 1), m = (int)strnlen(b, NAME_MAX_LENGTH + 1);
    if (n > NAME_MAX_LENGTH || m > NAME_MAX_LENGTH)
        return NAME_MAX_LENGTH;
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            row[j] = smaller(last[j - 1] + (x != y), smaller(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                row[j] = smaller(row[j], before[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

int nearest_tolerance(const char *word)
{
    size_t n = strlen(word);
    return n < 3 ? 1 : n < 6 ? 2 : n < 18 ? (int)(n / 3) : 6;
}
