#include "text/characters.h"

#include "text/utf8.h"

#include <string.h>

#define C(name) UTF8PROC_CATEGORY_##name

/* Characters that came with Unicode 14 to 16, or changed category since 13, and U+180E: first, last,
 * category in Unicode 16 (from its DerivedGeneralCategory). */
static const struct recent {
    uint32_t first, last;
    utf8proc_category_t category;
} recent[] = {
    {0x61D, 0x61D, C(PO)},     {0x870, 0x887, C(LO)},     {0x888, 0x888, C(SK)},
    {0x889, 0x88E, C(LO)},     {0x890, 0x891, C(CF)},     {0x897, 0x89F, C(MN)},
    {0x8B5, 0x8B5, C(LO)},     {0x8C8, 0x8C8, C(LO)},     {0x8C9, 0x8C9, C(LM)},
    {0x8CA, 0x8D2, C(MN)},     {0xC3C, 0xC3C, C(MN)},     {0xC5D, 0xC5D, C(LO)},
    {0xCDD, 0xCDD, C(LO)},     {0xCF3, 0xCF3, C(MC)},     {0xECE, 0xECE, C(MN)},
    {0x170D, 0x170D, C(LO)},   {0x1715, 0x1715, C(MC)},   {0x171F, 0x171F, C(LO)},
    {0x180E, 0x180E, C(CF)},   {0x180F, 0x180F, C(MN)},   {0x1AC1, 0x1ACE, C(MN)},
    {0x1B4C, 0x1B4C, C(LO)},   {0x1B4E, 0x1B4F, C(PO)},   {0x1B7D, 0x1B7F, C(PO)},
    {0x1C89, 0x1C89, C(LU)},   {0x1C8A, 0x1C8A, C(LL)},   {0x1DFA, 0x1DFA, C(MN)},
    {0x20C0, 0x20C0, C(SC)},   {0x2427, 0x2429, C(SO)},   {0x2C2F, 0x2C2F, C(LU)},
    {0x2C5F, 0x2C5F, C(LL)},   {0x2E53, 0x2E54, C(PO)},   {0x2E55, 0x2E55, C(PS)},
    {0x2E56, 0x2E56, C(PE)},   {0x2E57, 0x2E57, C(PS)},   {0x2E58, 0x2E58, C(PE)},
    {0x2E59, 0x2E59, C(PS)},   {0x2E5A, 0x2E5A, C(PE)},   {0x2E5B, 0x2E5B, C(PS)},
    {0x2E5C, 0x2E5C, C(PE)},   {0x2E5D, 0x2E5D, C(PD)},   {0x2FFC, 0x2FFF, C(SO)},
    {0x31E4, 0x31E5, C(SO)},   {0x31EF, 0x31EF, C(SO)},   {0x9FFD, 0x9FFF, C(LO)},
    {0xA7C0, 0xA7C0, C(LU)},   {0xA7C1, 0xA7C1, C(LL)},   {0xA7CB, 0xA7CC, C(LU)},
    {0xA7CD, 0xA7CD, C(LL)},   {0xA7D0, 0xA7D0, C(LU)},   {0xA7D1, 0xA7D1, C(LL)},
    {0xA7D3, 0xA7D3, C(LL)},   {0xA7D5, 0xA7D5, C(LL)},   {0xA7D6, 0xA7D6, C(LU)},
    {0xA7D7, 0xA7D7, C(LL)},   {0xA7D8, 0xA7D8, C(LU)},   {0xA7D9, 0xA7D9, C(LL)},
    {0xA7DA, 0xA7DA, C(LU)},   {0xA7DB, 0xA7DB, C(LL)},   {0xA7DC, 0xA7DC, C(LU)},
    {0xA7F2, 0xA7F4, C(LM)},   {0xFBC2, 0xFBC2, C(SK)},   {0xFD40, 0xFD4F, C(SO)},
    {0xFDCF, 0xFDCF, C(SO)},   {0xFDFE, 0xFDFF, C(SO)},   {0x10570, 0x1057A, C(LU)},
    {0x1057C, 0x1058A, C(LU)}, {0x1058C, 0x10592, C(LU)}, {0x10594, 0x10595, C(LU)},
    {0x10597, 0x105A1, C(LL)}, {0x105A3, 0x105B1, C(LL)}, {0x105B3, 0x105B9, C(LL)},
    {0x105BB, 0x105BC, C(LL)}, {0x105C0, 0x105F3, C(LO)}, {0x10780, 0x10785, C(LM)},
    {0x10787, 0x107B0, C(LM)}, {0x107B2, 0x107BA, C(LM)}, {0x10D40, 0x10D49, C(ND)},
    {0x10D4A, 0x10D4D, C(LO)}, {0x10D4E, 0x10D4E, C(LM)}, {0x10D4F, 0x10D4F, C(LO)},
    {0x10D50, 0x10D65, C(LU)}, {0x10D69, 0x10D6D, C(MN)}, {0x10D6E, 0x10D6E, C(PD)},
    {0x10D6F, 0x10D6F, C(LM)}, {0x10D70, 0x10D85, C(LL)}, {0x10D8E, 0x10D8F, C(SM)},
    {0x10EC2, 0x10EC4, C(LO)}, {0x10EFC, 0x10EFF, C(MN)}, {0x10F70, 0x10F81, C(LO)},
    {0x10F82, 0x10F85, C(MN)}, {0x10F86, 0x10F89, C(PO)}, {0x11070, 0x11070, C(MN)},
    {0x11071, 0x11072, C(LO)}, {0x11073, 0x11074, C(MN)}, {0x11075, 0x11075, C(LO)},
    {0x110C2, 0x110C2, C(MN)}, {0x1123F, 0x11240, C(LO)}, {0x11241, 0x11241, C(MN)},
    {0x11380, 0x11389, C(LO)}, {0x1138B, 0x1138B, C(LO)}, {0x1138E, 0x1138E, C(LO)},
    {0x11390, 0x113B5, C(LO)}, {0x113B7, 0x113B7, C(LO)}, {0x113B8, 0x113BA, C(MC)},
    {0x113BB, 0x113C0, C(MN)}, {0x113C2, 0x113C2, C(MC)}, {0x113C5, 0x113C5, C(MC)},
    {0x113C7, 0x113CA, C(MC)}, {0x113CC, 0x113CD, C(MC)}, {0x113CE, 0x113CE, C(MN)},
    {0x113CF, 0x113CF, C(MC)}, {0x113D0, 0x113D0, C(MN)}, {0x113D1, 0x113D1, C(LO)},
    {0x113D2, 0x113D2, C(MN)}, {0x113D3, 0x113D3, C(LO)}, {0x113D4, 0x113D5, C(PO)},
    {0x113D7, 0x113D8, C(PO)}, {0x113E1, 0x113E2, C(MN)}, {0x116B9, 0x116B9, C(PO)},
    {0x116D0, 0x116E3, C(ND)}, {0x1171E, 0x1171E, C(MC)}, {0x11740, 0x11746, C(LO)},
    {0x11AB0, 0x11ABF, C(LO)}, {0x11B00, 0x11B09, C(PO)}, {0x11BC0, 0x11BE0, C(LO)},
    {0x11BE1, 0x11BE1, C(PO)}, {0x11BF0, 0x11BF9, C(ND)}, {0x11F00, 0x11F01, C(MN)},
    {0x11F02, 0x11F02, C(LO)}, {0x11F03, 0x11F03, C(MC)}, {0x11F04, 0x11F10, C(LO)},
    {0x11F12, 0x11F33, C(LO)}, {0x11F34, 0x11F35, C(MC)}, {0x11F36, 0x11F3A, C(MN)},
    {0x11F3E, 0x11F3F, C(MC)}, {0x11F40, 0x11F40, C(MN)}, {0x11F41, 0x11F41, C(MC)},
    {0x11F42, 0x11F42, C(MN)}, {0x11F43, 0x11F4F, C(PO)}, {0x11F50, 0x11F59, C(ND)},
    {0x11F5A, 0x11F5A, C(MN)}, {0x12F90, 0x12FF0, C(LO)}, {0x12FF1, 0x12FF2, C(PO)},
    {0x1342F, 0x1342F, C(LO)}, {0x13439, 0x1343F, C(CF)}, {0x13440, 0x13440, C(MN)},
    {0x13441, 0x13446, C(LO)}, {0x13447, 0x13455, C(MN)}, {0x13460, 0x143FA, C(LO)},
    {0x16100, 0x1611D, C(LO)}, {0x1611E, 0x16129, C(MN)}, {0x1612A, 0x1612C, C(MC)},
    {0x1612D, 0x1612F, C(MN)}, {0x16130, 0x16139, C(ND)}, {0x16A70, 0x16ABE, C(LO)},
    {0x16AC0, 0x16AC9, C(ND)}, {0x16D40, 0x16D42, C(LM)}, {0x16D43, 0x16D6A, C(LO)},
    {0x16D6B, 0x16D6C, C(LM)}, {0x16D6D, 0x16D6F, C(PO)}, {0x16D70, 0x16D79, C(ND)},
    {0x18CFF, 0x18CFF, C(LO)}, {0x1AFF0, 0x1AFF3, C(LM)}, {0x1AFF5, 0x1AFFB, C(LM)},
    {0x1AFFD, 0x1AFFE, C(LM)}, {0x1B11F, 0x1B122, C(LO)}, {0x1B132, 0x1B132, C(LO)},
    {0x1B155, 0x1B155, C(LO)}, {0x1CC00, 0x1CCEF, C(SO)}, {0x1CCF0, 0x1CCF9, C(ND)},
    {0x1CD00, 0x1CEB3, C(SO)}, {0x1CF00, 0x1CF2D, C(MN)}, {0x1CF30, 0x1CF46, C(MN)},
    {0x1CF50, 0x1CFC3, C(SO)}, {0x1D1E9, 0x1D1EA, C(SO)}, {0x1D2C0, 0x1D2D3, C(NO)},
    {0x1DF00, 0x1DF09, C(LL)}, {0x1DF0A, 0x1DF0A, C(LO)}, {0x1DF0B, 0x1DF1E, C(LL)},
    {0x1DF25, 0x1DF2A, C(LL)}, {0x1E030, 0x1E06D, C(LM)}, {0x1E08F, 0x1E08F, C(MN)},
    {0x1E290, 0x1E2AD, C(LO)}, {0x1E2AE, 0x1E2AE, C(MN)}, {0x1E4D0, 0x1E4EA, C(LO)},
    {0x1E4EB, 0x1E4EB, C(LM)}, {0x1E4EC, 0x1E4EF, C(MN)}, {0x1E4F0, 0x1E4F9, C(ND)},
    {0x1E5D0, 0x1E5ED, C(LO)}, {0x1E5EE, 0x1E5EF, C(MN)}, {0x1E5F0, 0x1E5F0, C(LO)},
    {0x1E5F1, 0x1E5FA, C(ND)}, {0x1E5FF, 0x1E5FF, C(PO)}, {0x1E7E0, 0x1E7E6, C(LO)},
    {0x1E7E8, 0x1E7EB, C(LO)}, {0x1E7ED, 0x1E7EE, C(LO)}, {0x1E7F0, 0x1E7FE, C(LO)},
    {0x1F6DC, 0x1F6DF, C(SO)}, {0x1F774, 0x1F776, C(SO)}, {0x1F77B, 0x1F77F, C(SO)},
    {0x1F7D9, 0x1F7D9, C(SO)}, {0x1F7F0, 0x1F7F0, C(SO)}, {0x1F8B2, 0x1F8BB, C(SO)},
    {0x1F8C0, 0x1F8C1, C(SO)}, {0x1F979, 0x1F979, C(SO)}, {0x1F9CC, 0x1F9CC, C(SO)},
    {0x1FA75, 0x1FA77, C(SO)}, {0x1FA7B, 0x1FA7C, C(SO)}, {0x1FA87, 0x1FA89, C(SO)},
    {0x1FA8F, 0x1FA8F, C(SO)}, {0x1FAA9, 0x1FAAF, C(SO)}, {0x1FAB7, 0x1FABF, C(SO)},
    {0x1FAC3, 0x1FAC6, C(SO)}, {0x1FACE, 0x1FACF, C(SO)}, {0x1FAD7, 0x1FADC, C(SO)},
    {0x1FADF, 0x1FAE9, C(SO)}, {0x1FAF0, 0x1FAF8, C(SO)}, {0x1FBCB, 0x1FBEF, C(SO)},
    {0x2A6DE, 0x2A6DF, C(LO)}, {0x2B735, 0x2B739, C(LO)}, {0x2EBF0, 0x2EE5D, C(LO)},
    {0x31350, 0x323AF, C(LO)},
};

/* Characters of before Unicode 13 that no pattern in use names: category, length in UTF-8, character. */
static const struct stand_in {
    utf8proc_category_t category;
    size_t length;
    uint32_t character;
} stand_ins[] = {
    {C(CF), 3, 0x200B},  {C(CF), 4, 0x1D173}, {C(LL), 3, 0x1E01},  {C(LL), 4, 0x10428}, {C(LM), 3, 0xE46},
    {C(LM), 4, 0x16B40}, {C(LO), 3, 0x904},   {C(LO), 4, 0x10000}, {C(LU), 3, 0x1E00},  {C(LU), 4, 0x10400},
    {C(MC), 3, 0x903},   {C(MC), 4, 0x1D165}, {C(MN), 3, 0x901},   {C(MN), 4, 0x10A01}, {C(ND), 4, 0x104A0},
    {C(NO), 4, 0x10107}, {C(PD), 3, 0x1806},  {C(PD), 4, 0x10EAD}, {C(PE), 3, 0xF3B},   {C(PO), 2, 0xA1},
    {C(PO), 3, 0x964},   {C(PO), 4, 0x10100}, {C(PS), 3, 0xF3A},   {C(SC), 3, 0x9F2},   {C(SK), 3, 0x1FBD},
    {C(SM), 4, 0x1D6C1}, {C(SO), 3, 0x9FA},   {C(SO), 4, 0x10137},
};

static const struct recent *find_recent(uint32_t c)
{
    size_t low = 0, high = sizeof recent / sizeof *recent;

    /* Nothing is in here from Latin to Hebrew, nor among kana, ideographs and Hangul. */
    if (c < recent[0].first || (c >= 0x3000 && c < 0x9ffd) || (c >= 0xac00 && c < 0xd800))
        return NULL;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > recent[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof recent / sizeof *recent && c >= recent[low].first ? &recent[low] : NULL;
}

utf8proc_category_t character_category(uint32_t c)
{
    const struct recent *r = find_recent(c);

    return r != NULL ? r->category : utf8proc_category((utf8proc_int32_t)c);
}

bool character_is_space(uint32_t c)
{
    return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

bool character_is_word(uint32_t c)
{
    switch (character_category(c)) {
    case C(LU):
    case C(LL):
    case C(LT):
    case C(LM):
    case C(LO):
    case C(MN):
    case C(MC):
    case C(ME):
    case C(ND):
    case C(NL):
    case C(PC):
        return true;
    case C(CF):
        return c == 0x200c || c == 0x200d; /* Join_Control */
    case C(SO):                            /* letters in circles and squares: Other_Alphabetic */
        return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    default:
        return false;
    }
}

uint32_t character_stand_in(uint32_t c)
{
    const struct recent *r = find_recent(c);
    uint8_t bytes[4];
    size_t length;

    if (r == NULL)
        return c;
    length = utf8_put(c, bytes);
    for (size_t i = 0; i < sizeof stand_ins / sizeof *stand_ins; i++)
        if (stand_ins[i].category == r->category && stand_ins[i].length == length)
            return stand_ins[i].character;
    return c;
}

bool characters_need_shadow(const uint8_t *s, size_t n)
{
    size_t at = 0;

    while (at < n) {
        if (s[at] < 0x80)
            at++;
        else if (find_recent(utf8_next(s, &at)) != NULL)
            return true;
    }
    return false;
}

void characters_shadow(const uint8_t *s, size_t n, uint8_t *out)
{
    size_t at = 0;

    memcpy(out, s, n);
    while (at < n) {
        size_t from = at;
        uint32_t c = utf8_next(s, &at), other = character_stand_in(c);
        if (other != c)
            utf8_put(other, out + from);
    }
}
