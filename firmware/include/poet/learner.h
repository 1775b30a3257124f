/*
 * learner.h - a device that learns from samples of its own.
 *
 *   static struct poet_learner learner;
 *   static uint64_t memory[NAME_MEMORY_BYTES / 8];
 *   poet_learner_open(&learner, &NAME_package, &device, memory, sizeof memory);
 *   poet_learner_teach(&learner, sample, label);     keeps the sample
 *   poet_learner_learn(&learner, 100);               asks for 100 steps
 *   while (poet_learner_poll(&learner, 1000) == POET_BUSY) {
 *     ...                                            what else the device does
 *   }
 *   poet_learner_save(&learner);                     survives a power cut
 *   poet_learner_infer(&learner, sample, outputs);
 *
 * Functions return 0, POET_BUSY or a negative POET_ERROR_*. After an error
 * nothing has changed, but an error of the storage can undo steps that were not
 * committed, and damaged weights the last commit: `wanted` then counts these
 * steps again. No function may be called from an interrupt, or while another
 * one runs for the same learner.
 *
 * The library has no heap and no globals. Several learners may exist, each with
 * its own memory and its own storage.
 */
#ifndef POET_LEARNER_H
#define POET_LEARNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define POET_BUSY 1 /* not finished: call again */

/* The same as in poet.h, which includes the table wire.def. */
#ifndef POET_HAS_ERRORS
#define POET_HAS_ERRORS
enum poet_error {
  POET_ERROR_ok = 0,
  POET_ERROR_bad_message = -1,
  POET_ERROR_busy = -2,
  POET_ERROR_bad_object = -3, /* no such tensor, or bytes beyond its end */
  POET_ERROR_no_storage = -4, /* the call needs storage; a paging plan a card */
  POET_ERROR_foreign_storage = -5,
  POET_ERROR_storage_small = -6,  /* fewer than poet_learner_blocks, or than
                                   * the learner has laid out */
  POET_ERROR_storage_failed = -7, /* a function of the device failed, or the
                                   * storage has lost what was written */
  POET_ERROR_page_damaged = -8,
  POET_ERROR_bad_magic = -9,
  POET_ERROR_bad_version = -10,
  POET_ERROR_bad_fingerprint = -11,
  POET_ERROR_bad_crc = -12,
  POET_ERROR_bad_table = -13,
  POET_ERROR_bad_plan = -14,
  POET_ERROR_arena_small = -15,
  POET_ERROR_table_small = -16,
  POET_ERROR_no_schedule = -17,
  POET_ERROR_wrong_step = -18,
  /* training diverged: `wanted` is 0, the weights are those of the last commit;
   * without storage, those of the package */
  POET_ERROR_not_finite = -19,
  POET_ERROR_stopped = -20,
  POET_ERROR_storage_version = -21,
  POET_ERROR_out_of_order = -22, /* a tensor was not written from its first
                                  * byte to its last */
  POET_ERROR_inexact = -23,      /* this build or processor would change bits */
  POET_ERROR_shared = -24,
  POET_ERROR_not_blank = -25,   /* the storage has foreign contents */
  POET_ERROR_other_model = -26, /* the storage has weights of another model,
                                 * or those of a plan that stores them in
                                 * another way */
  POET_ERROR_closed = -27,      /* open was not called, or failed */
  POET_ERROR_memory = -28,      /* too small, or not aligned to 8 */
  POET_ERROR_package = -29,     /* damaged, or not for this library */
  POET_ERROR_bad_sample = -30,  /* a value is not finite */
  POET_ERROR_bad_label = -31,   /* the model has no such class */
  POET_ERROR_reentered = -32,   /* called from an interrupt or a callback */
  POET_ERROR_staged = -33,      /* tensors were written, but not adopted */
  POET_ERROR_no_kernel = -34
};
#endif

/* A model with its schedules and weights, in program flash: see package.h. */
struct poet_package;

/* What the application lends; zero where it has none. Functions that return an
 * int return 0 for success. */
struct poet_device {
  void *context;                     /* first argument of every function */
  uint32_t (*micros)(void *context); /* microseconds, wraps around; required */
  /* Storage in blocks of 512 bytes; 0: there is none, and nothing survives when
   * the power goes. */
  uint32_t blocks;
  int (*read)(void *context, uint32_t block, void *data); /* one block */
  /* Write one block. On flash, a block is written at most once after it was
   * erased. */
  int (*write)(void *context, uint32_t block, const void *data);
  /* Return when all that was written survives a power cut. May be NULL. */
  int (*flush)(void *context);
  /* Flash: blocks of an erase unit; 0: no erase is needed. */
  uint32_t erase_blocks;
  /* All bytes of the unit that begins with `block` become 0xff. */
  int (*erase)(void *context, uint32_t block);
  /* Take a bus that the storage shares; not 0: it is busy, so the call returns
   * POET_BUSY and has changed nothing. A call takes the bus at most once. Both
   * may be NULL. */
  int (*take_bus)(void *context);
  void (*give_bus)(void *context);
};

struct poet_learner_state {
  uint32_t step;       /* of the weights */
  uint32_t saved_step; /* of the weights that survive a power cut */
  uint32_t next_step;  /* the first one that may use a sample taught now */
  uint32_t wanted;     /* steps still to be run */
  uint32_t samples;    /* in all classes */
  uint32_t classes;    /* those with samples */
  float loss;          /* of the last step; NaN before the first */
  bool busy;           /* a step or a commit is unfinished */
};

/* A learner; its fields are for the library alone. It must be zero before the
 * first call of poet_learner_open. */
#define POET_LEARNER_BYTES (sizeof(void *) > 4 ? 1408 : 1168)
struct poet_learner {
  union {
    unsigned char bytes[POET_LEARNER_BYTES];
    uint64_t alignment;
    void *pointer;
  } opaque;
};

/* Begin with the newest committed weights on the storage, or those of the
 * package. Blank storage (all bytes of the store's first block 0x00 or all
 * 0xff) is laid out. The store lies in the partition of type 0xDA, or at block
 * 0 if there is no such partition. All arguments must stay valid.
 *
 * Another package of the same model goes on with the weights. If it keeps other
 * samples (classes, number or type), the samples on the storage are forgotten.
 * If its plan stores tensors in another way, the result is other_model. Plans
 * of `solve --no-storage` all store them in the same way. */
int poet_learner_open(struct poet_learner *learner,
                      const struct poet_package *package,
                      const struct poet_device *device, void *memory,
                      uint32_t bytes);

/* Compute NAME_OUTPUTS floats. A running step is finished first. */
int poet_learner_infer(struct poet_learner *learner, const void *sample,
                       float *outputs);

/* Keep a copy of a sample. It replaces the oldest one of a full class.
 * POET_BUSY: an uncommitted step may have used that one; nothing was kept, and
 * the next calls of poll commit. */
int poet_learner_teach(struct poet_learner *learner, const void *sample,
                       uint32_t label);

/* Ask for so many more steps, or with 0 for none. A step that runs is finished
 * by poll. */
int poet_learner_learn(struct poet_learner *learner, uint32_t steps);

/* Work for about `budget_us`, or for one slice if it is 0. POET_BUSY: there is
 * more to do; 0: there is nothing to do. */
int poet_learner_poll(struct poet_learner *learner, uint32_t budget_us);

/* Finish a running step, and commit. */
int poet_learner_save(struct poet_learner *learner);

/* In C++ its name hides the constructor of the struct, which does no harm. */
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif
int poet_learner_state(const struct poet_learner *learner,
                       struct poet_learner_state *state);
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

/* Read bytes of a tensor with the number that it has in NAME_tensor_names. A
 * running step is finished first. */
int poet_learner_read(struct poet_learner *learner, uint32_t tensor,
                      uint32_t offset, void *to, uint32_t size);

/* Stage bytes of a tensor. Write a tensor from its first byte to its last,
 * before the next tensor. Needs storage. Until poet_learner_adopt, poll and
 * save return POET_ERROR_staged. The first call finishes a running step, and
 * commits. After out_of_order, write the tensor that is not complete again. On
 * flash, let each call but a tensor's last one write whole blocks of 512 bytes,
 * or call no other function until the tensor is complete.
 * POET_ERROR_bad_object, too: the plan pages the tensor, and no step changes
 * it. */
int poet_learner_write(struct poet_learner *learner, uint32_t tensor,
                       uint32_t offset, const void *from, uint32_t size);

/* Commit all that was written, at once. Other tensors keep their values.
 * POET_ERROR_not_finite: a number that was written is not finite. */
int poet_learner_adopt(struct poet_learner *learner);

/* Forget samples, trained weights (which become those of the package) or both.
 * A running step is finished first. Steps go on counting, so the first steps
 * with Adam after that change the weights more than those of a new device.
 * After poet_learner_open has returned not_blank, other_model, storage_small or
 * storage_failed, both together make the storage blank. The result is that of
 * open again if the storage still fails, or if the partition of type 0xDA ends
 * beyond poet_device.blocks. */
enum { POET_FORGET_SAMPLES = 1, POET_FORGET_WEIGHTS = 2 };
int poet_learner_forget(struct poet_learner *learner, uint32_t what);

/* Return the least blocks of storage, if an erase unit has `erase_blocks` (0:
 * no erase is needed). */
uint32_t poet_learner_blocks(const struct poet_package *package,
                             uint32_t erase_blocks);

/* Return a sentence about a result of these functions. */
const char *poet_learner_text(int result);

#ifdef __cplusplus
}
#endif

#endif
