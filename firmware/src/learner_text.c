/*
 * learner_text.c - a sentence about each result of a learner's functions.
 */
#include "poet/poet.h"
#include "poet/learner.h"

#if POET_LIBRARY

const char *poet_learner_text(int result) {
  switch (result) {
  case POET_ERROR_ok:
    return "Done.";
  case POET_BUSY:
    return "There is more to do: call again.";
  case POET_ERROR_closed:
    return "The learner is closed: call poet_learner_open first, and look at "
           "its result.";
  case POET_ERROR_memory:
    return "The memory is too small, or not aligned to 8 bytes: use "
           "uint64_t memory[NAME_MEMORY_BYTES / 8].";
  case POET_ERROR_package:
    return "The package is damaged, or was made for another version of the "
           "library: make it again from its schedule.";
  case POET_ERROR_inexact:
    return "The compiler or the processor would change results: compile "
           "without -ffast-math, and let the processor keep subnormal numbers.";
  case POET_ERROR_no_storage:
    return "This needs storage, and the device lends none: a plan that pages "
           "needs storage without erase, such as a card.";
  case POET_ERROR_storage_small:
    return "The storage is too small: lend as many blocks as "
           "poet_learner_blocks returns, not fewer than before, and all of the "
           "partition of type 0xDA.";
  case POET_ERROR_storage_failed:
    return "The storage failed: a function of the device returned an error, or "
           "the storage lost what was written.";
  case POET_ERROR_not_blank:
    return "The storage has contents of something else. To erase them, forget "
           "samples and weights, and open again.";
  case POET_ERROR_other_model:
    return "The storage has weights of another model or plan. To erase them, "
           "forget samples and weights, and open again.";
  case POET_ERROR_bad_sample:
    return "A value of the sample is not a finite number.";
  case POET_ERROR_bad_label:
    return "The label is too large: the model has fewer classes.";
  case POET_ERROR_bad_object:
    return "The model has no such tensor, the tensor is frozen, or the bytes "
           "lie beyond its end.";
  case POET_ERROR_out_of_order:
    return "A tensor was not written from its first byte to its last: write it "
           "again.";
  case POET_ERROR_staged:
    return "Tensors were written: adopt or forget them first.";
  case POET_ERROR_not_finite:
    return "Training diverged, so the weights are those of the last commit: "
           "lower the learning rate, or look at the samples.";
  case POET_ERROR_reentered:
    return "A function was called from an interrupt, or while another one runs "
           "for the same learner.";
  default:
    return "The library does not know this result.";
  }
}

#endif
