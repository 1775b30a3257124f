/* flash.h - the array of a chip's own flash: erasing, programming, wear, and
   power cuts. The registers of its controller are in samd21_nvm.c and
   nrf_nvmc.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct machine;

/* State: the array's content is machine.flash. Programming only clears bits. */
struct flash_array {
  uint32_t erase_bytes;   /* size of what one erase erases */
  uint32_t program_bytes; /* size of what one write programs */
  /* Most writes between two erases to `counted_bytes` bytes: a multiple of
     program_bytes. */
  uint32_t counted_bytes, most_writes;
  uint32_t erase_us, write_us;
  uint8_t *writes;      /* since the last erase, for each counted_bytes */
  uint32_t program_end; /* end of the loaded program, which must stay */
  /* Until this tick, fetches from flash stall, and the controller is busy. */
  uint64_t busy_until;
  uint64_t busy_ticks, erased, programmed; /* since the start */
  uint64_t cut; /* operations until the power fails; 0: it does not */
  /* Unicorn stores into flash after all. These bytes belong there. */
  struct {
    uint32_t address, size_bytes; /* size 0: nothing to correct */
    uint8_t content[8];
  } correction;
};

void flash_create(struct machine *m, const struct flash_array *facts);
/* Erase the unit that contains `address`, or program its bits that are 0 in
   `data`. The machine stops, with the reason, at an operation that would damage
   the program, or wear the flash beyond the data sheet. */
void flash_erase(struct machine *m, uint32_t address);
/* Let a part of an erase take `us`. Until its last part, the content of the unit
   is undefined, and it cannot be written. */
void flash_erase_part(struct machine *m, uint32_t address, uint32_t us,
                      bool is_last);
void flash_program(struct machine *m, uint32_t address, const void *data);
/* Let the controller handle a store of the program into flash. Return false if
   the core faults. */
bool flash_store(struct machine *m, uint32_t address, unsigned size,
                 uint32_t value);
/* Undo what Unicorn has stored. */
void flash_correct(struct machine *m);
/* Let the time of a write pass. */
void flash_stall(struct machine *m);
bool flash_busy(const struct machine *m);
