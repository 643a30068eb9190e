/* Rows as the model takes them: tokens, targets, positions, and a table of pieces.
 *
 * A batch is rows x seq_len positions, row after row: position p of row r is element r*seq_len + p.
 * A piece is a run of one document within one row; it attends to itself only and its positions count
 * from 0. A document that goes on in the next row is a new piece there. The target of a token is the
 * document's next token, also where that stands in the next row; a document's last token has none, and
 * neither has, in rows that are not packed, the last token kept. Positions without a token (the
 * padding of short documents, the end of an epoch's last packed row) hold pad_id, target -1 and
 * position 0, and belong to no piece. */
#ifndef TERCET_DATA_ROWS_H
#define TERCET_DATA_ROWS_H

#include "base/error.h"
#include "data/order.h"

#include <stdint.h>

struct batch_piece {
    int32_t q_start, q_len;   /* in elements of the batch */
    int32_t kv_start, kv_len; /* equal to q_*: cached decoding is where they differ */
};

struct batch {
    int64_t rows, seq_len;
    int32_t *ids;               /* [rows, seq_len] */
    int32_t *targets;           /* [rows, seq_len], -1: none */
    int32_t *positions;         /* [rows, seq_len] */
    struct batch_piece *pieces; /* [piece_count], in order of q_start */
    int64_t piece_count;
    int64_t token_count;  /* positions that hold a token */
    int64_t target_count; /* positions that have a target */
    int64_t max_rows;     /* that there is room for */
};

/* Room for max_rows rows, max_rows*seq_len of them pieces. ERROR_INPUT when max_rows*seq_len does not
 * fit int32_t. Free with batch_free. */
int batch_create(struct batch *batch, int64_t max_rows, int64_t seq_len, struct error *err);
void batch_free(struct batch *batch); /* safe on a zeroed one */

/* Fills the batch with rows row … row+rows-1 of an epoch; rows is at most batch->max_rows, the range
 * lies within the epoch, and the batch has the plan's seq_len (a bug otherwise: asserted). Allocates
 * nothing unless the epoch changes. ERROR_RUN when the cache turns out damaged (an id above its
 * max_id). */
int rows_read(struct row_plan *plan, int64_t epoch, int64_t row, int64_t rows, struct batch *batch,
              struct error *err);

#endif
