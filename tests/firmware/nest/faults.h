/* Faults of a card: what it does in place of what it reports. */
#ifndef FAULTS_H
#define FAULTS_H

#include "../board.h"

#define FAULT_LIST(FAULT)                                                      \
  FAULT(DROPPED, "dropped write")                                              \
  FAULT(MISDIRECTED, "misdirected write")                                      \
  FAULT(TORN, "torn write")                                                    \
  FAULT(BIT_WRITTEN, "wrong bit written")                                      \
  FAULT(BIT_LATER, "bit changes later")   /* of any written block */           \
  FAULT(OLD, "block becomes old")         /* as it was before a write */       \
  FAULT(SWAPPED, "blocks swapped")        /* two written blocks */             \
  FAULT(OTHER_CARD, "other card's block") /* a card with the same model */     \
  FAULT(CUT, "power cut")                 /* loses what is not flushed */      \
  FAULT(SEVERAL, "several dropped")       /* writes */                         \
  FAULT(BIT_READ, "wrong bit read")       /* once */                           \
  FAULT(CUT_LATER, "cut after a drop")    /* writes dropped before a cut */    \
  FAULT(SCHEDULE_READ, "wrong schedule read") /* after the load */             \
  FAULT(SCHEDULE, "schedule changes")         /* on the card, after the load */

enum fault_kind {
#define FAULT(name, text) FAULT_##name,
  FAULT_LIST(FAULT)
#undef FAULT
      FAULT_KINDS
};

/* Start to count accesses. The card has no faults, and no history. */
void faults_start(struct card *card);
uint32_t faults_writes(void);
uint32_t faults_reads(void);
/* Add a fault, at the write of this number, or at the read of this number. */
void faults_add(enum fault_kind kind, uint32_t at);
bool faults_at_reads(enum fault_kind kind);
/* Return the number of faults that have happened. */
uint32_t faults_happened(void);
/* Return whether all faults are power cuts. */
bool faults_only_cut(void);
/* Describe the faults on standard error. */
void faults_print(void);
/* The power is back after a cut: each block that was not flushed may have its
   content of before. */
void faults_power_on(void);
/* Keep the content of the card as that of another card. */
void faults_keep_other(void);
/* Give the card the content of the other one. */
void faults_use_other(void);

#endif
