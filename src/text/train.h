/* Training of byte-level BPE (Sennrich et al., "Neural machine translation of rare words with subword
 * units", 2016; on bytes: Radford et al., GPT-2, 2019), with the results of Hugging Face's BpeTrainer.
 *
 *     struct bpe_trainer *trainer;
 *     if (bpe_trainer_create(&trainer, err) != 0) …
 *     for (each document)
 *         if (bpe_trainer_add(trainer, text, length, err) != 0) …
 *     if (bpe_trainer_write(trainer, &(struct bpe_options){.vocab_size = 8192}, "out", &result, err) != 0) …
 *     bpe_trainer_free(trainer);
 *
 * Text is cut into words by GPT-2's pattern; only the number of times each word occurs is kept. Id 0 is
 * `<|endoftext|>`, ids 1 … 256 are the bytes, the others the merges in the order they were found: always
 * the most frequent pair of neighbouring tokens, among equals the one with the smaller ids. The result
 * does not depend on the order of documents, nor on how they were shared out among trainers. */
#ifndef TERCET_TEXT_TRAIN_H
#define TERCET_TEXT_TRAIN_H

#include "base/error.h"
#include "base/log.h"

#include <stddef.h>
#include <stdint.h>

struct bpe_trainer;

int bpe_trainer_create(struct bpe_trainer **out, struct error *err);
void bpe_trainer_free(struct bpe_trainer *trainer); /* NULL is allowed */

/* Counts the words of one document (UTF-8; ERROR_INPUT naming the byte offset where it is not). One
 * thread at a time. */
int bpe_trainer_add(struct bpe_trainer *trainer, const char *text, size_t length, struct error *err);
/* Adds the counts of `from`, which stays as it is: threads may count apart, each in its own trainer. */
int bpe_trainer_merge(struct bpe_trainer *into, const struct bpe_trainer *from, struct error *err);

struct bpe_options {
    int64_t vocab_size;    /* all tokens, `<|endoftext|>` and the 256 bytes included: 257 … 2^24 */
    int64_t min_frequency; /* a pair that occurs less often is not merged; 0 is as 1 */
    const struct log *log; /* progress; NULL for none */
};

struct bpe_result {
    int64_t vocab_size; /* less than asked for where the text has no more pairs to merge */
    int64_t merges;
    int64_t words, distinct_words; /* that were counted */
};

/* Finds the merges and writes tokenizer.json and tokenizer_config.json into `directory`, which is made
 * where it is missing. `result` may be NULL. The trainer keeps its counts. ERROR_INPUT for options out
 * of range and where no text was added. */
int bpe_trainer_write(struct bpe_trainer *trainer, const struct bpe_options *options, const char *directory,
                      struct bpe_result *result, struct error *err);

#endif
