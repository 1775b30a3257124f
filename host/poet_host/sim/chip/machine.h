/* machine.h - one simulated chip: core, memory, clock and peripherals.

   Time is counted in ticks of the chip's fastest clock (48 MHz on the SAM D21,
   64 MHz on the nRF52840), which every peripheral's clock divides. The core
   advances it block by block. The same program with the same input always takes
   the same ticks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unicorn/unicorn.h>

#include "api.h"
#include "decode.h"
#include "flash.h"
#include "registers.h"
#include "serial.h"

#define NEVER UINT64_MAX

enum {
  EVENTS = 40,
  REGIONS = 40,
  WINDOWS = 8,
  EXCEPTIONS = 16 + 64,
  RAM_PIECE_BYTES = 8192, /* RAM is mapped in pieces of this size */
  RAM_PIECES = 32,
  RAM_BLOCKS = 1024,     /* of which the decoded form is kept */
  RAM_BLOCK_BYTES = 256, /* the size of the largest of them */
  MESSAGE_BYTES = 512,
};

struct machine;

/* The reasons for which the hook refuses to run a block. */
enum refusal { REFUSE_NOTHING, REFUSE_ILLEGAL, REFUSE_FPU, REFUSE_UNALIGNED };

/* Bits of the Configurable Fault Status Register (ARMv7-M B3.2.15). */
enum {
  CFSR_IBUSERR = 1 << 8,
  CFSR_PRECISERR = 1 << 9,
  CFSR_BFARVALID = 1 << 15,
  CFSR_UNDEFINSTR = 1 << 16,
  CFSR_NOCP = 1 << 19,
  CFSR_UNALIGNED = 1 << 24,
};

/* A range of addresses whose accesses call our functions. */
struct window {
  struct machine *m;
  uint32_t base;
};

/* An action of a peripheral at tick `at`; NEVER: the action is not
   scheduled. */
struct event {
  uint64_t at;
  void (*fire)(void *owner, uint64_t at);
  void *owner;
  unsigned index; /* in the machine's events; of equal times, the least fires */
  bool watchdog;  /* this event leads to a reset */
};

/* A peripheral's registers: a table, or two functions. They return false if the
   model does not cover the register, or an access of that width. If `ready`
   returns false, it has stopped the machine, and accesses have no effect.
   `ready` NULL: always ready. */
struct region {
  const char *name;
  uint32_t base, size_bytes;
  void *owner;
  const struct reg *registers;
  bool (*ready)(void *owner);
  bool (*read)(void *owner, uint32_t offset, unsigned size, uint32_t *value);
  bool (*write)(void *owner, uint32_t offset, unsigned size, uint32_t value);
};

/* The part of the System Control Space that firmware sees (ARMv7-M B3). */
struct system_control {
  bool enabled[EXCEPTIONS], pending[EXCEPTIONS], active[EXCEPTIONS];
  bool line[EXCEPTIONS]; /* level of a peripheral's request */
  uint8_t priority[EXCEPTIONS];
  uint8_t priority_mask;
  /* number of the pending and enabled exception of the highest priority, or
     0 */
  int best;
  int running; /* priority of the active exception, 256 in thread mode */
  uint32_t vtor, scr, ccr, cpacr, cfsr, hfsr, bfar, demcr;
  bool event_register;
  /* a barrier has been executed since the exception was entered; and the same
     for the code that each active exception has interrupted */
  bool stores_ordered, interrupted_ordered[EXCEPTIONS];
  uint32_t systick_csr, systick_rvr;
  uint64_t systick_zero_at;
  struct event systick;
};

/* The direct-mapped cache of the flash: tags, and the cost of a miss. */
struct flash_cache {
  uint32_t tags[128];
  uint8_t line_shift, miss_cycles;
  uint16_t lines; /* a power of two; 0: every line fetched costs miss_cycles */
  uint16_t mask;  /* line number & mask is the index in tags */
};

/* A decoded block in RAM, and the code that it was decoded from. */
struct ram_block {
  uint32_t address;
  uint8_t code[RAM_BLOCK_BYTES];
  struct block block;
};

struct machine {
  uc_engine *uc;
  enum core core;
  uint8_t *flash, *ram;
  uint32_t flash_bytes, ram_base, ram_bytes;
  uint32_t stack_limit;  /* lowest allowed address of the stack; 0: unknown */
  uint32_t stack_lowest; /* lowest address that the stack has reached */
  uint32_t start;        /* address of the vector table after reset */
  struct flash_array array;
  /* A store of the program into flash; false: the core faults. NULL: so it
     does at every store. */
  bool (*store)(void *owner, uint32_t address, unsigned size, uint32_t value);
  void *store_owner;
  /* A store to UICR; false: not allowed. NULL: none is. */
  bool (*store_factory)(void *chip, uint32_t address);
  /* NULL: no part can be locked */
  bool (*locked)(const void *chip, uint32_t address);
  bool take_faults; /* enter HardFault instead of stopping */

  uint64_t now;      /* the clock: ticks since the start */
  uint64_t deadline; /* the hook looks at events from this tick on */
  uint64_t until;    /* end of the slice */
  uint64_t began;    /* start of the running block of code */
  uint32_t tick_hz, ticks_per_cycle;
  struct machine_meter meter;
  struct flash_cache cache;

  bool asleep, sleeping_for_event;
  bool locked_up;
  bool lock_up_resets; /* the chip resets a core that is locked up */
  bool wait_idle;      /* see machine_wait_idle */
  enum reset_cause cause;
  uint32_t hung; /* one bit for each enum hang */
  uint32_t supply_mv;
  void (*supply_changed)(void *chip); /* NULL: nothing depends on it */
  bool conditional;     /* the last block ended in a conditional branch */
  uint8_t taken_cycles; /* additional cycles if that branch was taken */
  /* address of the next block if that branch was not taken */
  uint32_t fall_through;
  uint32_t block_address;
  bool fp_used_in_handler;
  /* aligned_after of the running block (decode.h) */
  uint16_t aligned_after;
  struct block *flash_blocks;              /* decoded blocks, by address / 2 */
  struct ram_block ram_blocks[RAM_BLOCKS]; /* by address / 2 % RAM_BLOCKS */
  const struct block *ram_block; /* the running block, if it is in RAM */

  struct system_control scs;
  struct event *events[EVENTS];
  unsigned event_count;
  /* The next event, if its time is still `first_at`. No event is earlier. */
  struct event *first;
  uint64_t first_at;
  struct region regions[REGIONS];
  unsigned region_count;
  const struct region *last_region;
  struct window windows[WINDOWS];
  unsigned window_count;
  /* blocks of registers without a model; the list ends with {0} */
  const struct region *unmodelled;

  bool in_core;      /* inside uc_emu_start */
  bool accessing;    /* inside an access to a register or to watched RAM */
  uint32_t accessed; /* address of that access */
  bool attend;       /* the hook stopped the core before a block */
  enum refusal refusal;
  struct guard {
    uint32_t from, to;
    const char *why;
  } guard;
  struct window watched[RAM_PIECES]; /* RAM whose accesses call bus.c */
  int interrupt; /* number of the interrupt that the core raised, or -1 */
  uint64_t bad_address;
  unsigned bad_size;
  uc_mem_type bad_access;
  enum run_result result;
  bool stopped;
  char message[MESSAGE_BYTES];

  struct serial serial;
  struct usb_bus *usb; /* NULL: the chip has no USB */
  struct sdcard *card;
  struct scene *scene; /* NULL: nothing happens around the board */
  void *chip;          /* the state of all models of the chip; NULL: none */
};

/* -- for peripherals -- */
void event_add(struct machine *m, struct event *event,
               void (*fire)(void *owner, uint64_t at), void *owner);
void event_at(struct machine *m, struct event *event, uint64_t at);
void event_cancel(struct event *event);
void machine_map(struct machine *m, const struct region *region);
/* Pointer to RAM for a DMA; NULL, after a stop that names `who`, if the range
   is not in RAM, or is guarded. */
uint8_t *machine_dma(struct machine *m, const char *who, uint32_t address,
                     uint32_t size_bytes);
/* The same, for a source of a DMA that may also be in flash. */
const uint8_t *machine_dma_source(struct machine *m, const char *who,
                                  uint32_t address, uint32_t size_bytes);
void machine_stop(struct machine *m, enum run_result result, const char *format,
                  ...) __attribute__((format(printf, 3, 4)));
uint64_t machine_nanoseconds(const struct machine *m);
uint64_t ticks_to_ns(const struct machine *m, uint64_t ticks);
/* Exchange a byte with the card, if there is one; the machine stops at a
   complaint and at an injected power cut. `at`: the tick at which it ends. */
uint8_t machine_card_exchange(struct machine *m, uint8_t out, uint64_t at,
                              uint64_t byte_ticks);
/* Set the level of the card's select pin. */
void machine_card_select(struct machine *m, bool low);
/* Stop at any access to this RAM; `why` completes "access to ...:". An empty
   range ends the guard. */
void machine_guard(struct machine *m, uint32_t from, uint32_t to,
                   const char *why);
void cache_configure(struct machine *m, unsigned line_shift, unsigned lines,
                     unsigned miss_cycles);

/* -- between bus.c and core.c -- */
const struct event *next_event(struct machine *m);
/* Run all events that are due, and return the tick of the next event. */
uint64_t run_events(struct machine *m);
void uncovered(struct machine *m, const char *what, uint32_t address,
               unsigned size);
void core_on_block(uc_engine *uc, uint64_t address, uint32_t size_bytes,
                   void *user);
void core_on_interrupt(uc_engine *uc, uint32_t number, void *user);
bool core_on_bad_access(uc_engine *uc, uc_mem_type type, uint64_t address,
                        int size, int64_t value, void *user);

/* Stop if stores to RAM may still be under way when `what` starts: if no
   barrier was executed since the exception was entered. */
void machine_check_stores(struct machine *m, const char *what);

/* -- power.c -- */
void machine_request_reset(struct machine *m, enum reset_cause cause,
                           const char *text);
bool machine_hangs(const struct machine *m, enum hang part);
/* A fault has happened for which the core has no handler. */
void core_lock_up(struct machine *m);

/* -- align.c -- */
bool align_holds(struct machine *m, uint16_t needed);

/* -- locate.c -- */
/* Return the address of the instruction of the current block that accessed
   `address`. */
uint32_t locate_access(struct machine *m, uint32_t address);

/* -- construction -- */
struct machine *machine_create(enum core core, uint32_t flash_bytes,
                               uint32_t ram_base, uint32_t ram_bytes,
                               uint32_t tick_hz);
void machine_window(struct machine *m, uint32_t base, uint32_t size_bytes);

/* -- exception.c -- */
void scs_create(struct machine *m);
void scs_reset(struct machine *m);
void exceptions_refresh(struct machine *m);
/* Return the exception of the highest priority that can be taken now, or 0. */
int exception_ready(struct machine *m);
bool exception_wakes(const struct machine *m);
void exception_enter(struct machine *m, int number);
void exception_return(struct machine *m, uint32_t exc_return);
void exception_fault(struct machine *m, uint32_t cfsr, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* -- core registers and rights of RAM: call only between two core runs -- */
/* Let core cycles pass. */
void core_pass(struct machine *m, uint32_t cycles);
bool watch_pending(const struct machine *m);
void watch_guarded(struct machine *m);
void allow_code(struct machine *m, uint32_t address);
uint32_t core_read(struct machine *m, int reg);
void core_write(struct machine *m, int reg, uint32_t value);
