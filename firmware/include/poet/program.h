/*
 * program.h - schedules in memory, such as program flash, and storage that the
 * board lays out for them. A part of poet.h.
 */
#ifndef POET_PROGRAM_H
#define POET_PROGRAM_H

#include "port.h"

#ifdef __cplusplus
extern "C" {
#endif

struct poet;
struct poet_facts;

/* Both parts of a schedule in memory, such as a chip's program flash. Their
 * bytes must not change while the schedule is loaded. */
struct poet_program {
  const uint8_t *model, *plan;
  uint32_t model_bytes, plan_bytes;
  /* blocks of the storage that the library leaves to the application, after its
   * own ones */
  uint32_t own_blocks;
};

/* Where several tensors lie on storage that the board has laid out (map.c). */
struct poet_run {
  uint32_t first, count; /* their blocks in slot 0, as a host lays them out */
  uint32_t at;           /* block of the partition where slot 0 lies */
  uint32_t stride;       /* blocks from a slot to the next one */
  uint32_t slots;
};

/* Validate a schedule in memory and load it, as poet_load does. Each step reads
 * it where it is. `program` stays in use until another schedule is loaded.
 *
 * The storage is the partition of type 0xDA, or all blocks if there is none. If
 * all bytes of its first block are 0x00 or all are 0xff, the storage is blank:
 * the board lays it out, with as few blocks as poet_least_blocks states. A
 * storage with committed weights of another model is refused (other_model), and
 * one with other contents too (not_blank). Nothing is written to these. Without
 * storage, weights that are written are lost when the power goes, or when a
 * step fails. */
POET_CHECKED int poet_load_program(struct poet *p,
                                   const struct poet_program *program,
                                   struct poet_facts *facts);

/* Validate a forward program, after its training program was loaded from memory
 * or from storage. bad_table: its stored tensors, or their homes, are others.
 * `program` stays in use until another schedule is loaded. */
POET_CHECKED int poet_load_forward(struct poet *p,
                                   const struct poet_program *program);

/* Compute the outputs of one batch, between two steps. `data` has the bytes of
 * the program's input. `outputs` points into the arena, until the next call of
 * a function with this `p`. Weights are those of the last step, committed or
 * not. No weight and no commit changes, and the next step gives the same bits,
 * after errors too. A batch for the next step stays if it is complete; write
 * one that is not again.
 *
 * busy: a step runs, or weights were written and poet_begin was not called.
 * page_damaged: a step finds and repairs damaged weights; a page was lost if
 * `detail` is a computed tensor: call poet_infer again. */
POET_CHECKED int poet_infer(struct poet *p, const void *data,
                            const uint8_t **outputs);

/* Return the least number of blocks that a program needs on storage whose erase
 * unit has `erase_blocks` blocks (0: no erase is needed). */
uint32_t poet_least_blocks(const struct poet_program *program,
                           uint32_t erase_blocks);

#ifdef __cplusplus
}
#endif

#endif
