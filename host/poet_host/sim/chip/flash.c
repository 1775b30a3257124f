/* flash.c - the array of a chip's own flash (flash.h).

   An operation takes effect at its start; fetches from flash stall until its
   end, and so does the whole chip, as its program runs from there. An operation
   that a power cut interrupts leaves half of its bytes done, and the others of
   an erase undefined. */
#include "flash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "machine.h"

void flash_create(struct machine *m, const struct flash_array *facts) {
  m->array = *facts;
  m->array.writes = calloc(m->flash_bytes / facts->counted_bytes, 1);
}

bool machine_flash_file(struct machine *m, int file) {
  struct stat facts;
  return fstat(file, &facts) == 0 && facts.st_size == (off_t)m->flash_bytes &&
         mmap(m->flash, m->flash_bytes, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
}

void machine_flash_cut(struct machine *m, uint64_t operation) {
  m->array.cut = operation;
}

bool machine_flash_locked(const struct machine *m, uint32_t address) {
  return m->locked && m->locked(m->chip, address);
}

void flash_correct(struct machine *m) {
  memcpy(m->flash + m->array.correction.address, m->array.correction.content,
         m->array.correction.size_bytes);
  m->array.correction.size_bytes = 0;
}

bool flash_store(struct machine *m, uint32_t address, unsigned size,
                 uint32_t value) {
  flash_correct(m); /* of the store before this one */
  if (!m->store || !m->store(m->store_owner, address, size, value))
    return false;
  m->array.correction.address = address;
  m->array.correction.size_bytes = size;
  memcpy(m->array.correction.content, m->flash + address, size);
  return true;
}

bool flash_busy(const struct machine *m) {
  return m->now < m->array.busy_until;
}

static void stall(struct machine *m, uint32_t us) {
  struct flash_array *array = &m->array;
  const uint64_t ticks = (uint64_t)us * (m->tick_hz / 1000000u);
  if (array->busy_until < m->now)
    array->busy_until = m->now;
  array->busy_until += ticks;
  array->busy_ticks += ticks;
}

/* Let the time of an operation pass. Return false if it is not allowed. */
static bool begin(struct machine *m, const char *what, uint32_t address,
                  uint32_t us) {
  const struct flash_array *array = &m->array;
  if (m->stopped)
    return false;
  if (address >= m->flash_bytes) {
    machine_stop(m, RUN_FAULT, "flash: %s at 0x%08x, which is not in flash",
                 what, address);
    return false;
  }
  if (address < array->program_end) {
    machine_stop(m, RUN_FAULT,
                 "flash: %s at 0x%08x damages the program, which ends at "
                 "0x%08x",
                 what, address, array->program_end);
    return false;
  }
  stall(m, us);
  return true;
}

void flash_stall(struct machine *m) {
  stall(m, m->array.write_us);
}

/* Return true if the power fails during this operation. */
static bool power_fails(struct machine *m) {
  if (!m->array.cut || --m->array.cut)
    return false;
  machine_stop(m, RUN_POWER_CUT, "the power fails while flash is changed");
  return true;
}

void flash_erase_part(struct machine *m, uint32_t address, uint32_t us,
                      bool is_last) {
  struct flash_array *array = &m->array;
  const uint32_t size = array->erase_bytes;
  uint8_t *at = m->flash + (address & ~(size - 1));
  address &= ~(size - 1);
  if (!begin(m, "erase", address, us))
    return;
  array->erased += is_last;
  memset(array->writes + address / array->counted_bytes,
         is_last ? 0 : (int)array->most_writes, size / array->counted_bytes);
  const bool whole = !power_fails(m) && is_last;
  const uint32_t done = whole ? size : is_last ? size / 2 : 0;
  memset(at, 0xff, done);
  for (uint32_t i = done; i < size; i++)
    at[i] |= (uint8_t)(i * 37u ^ address >> 8);
}

void flash_erase(struct machine *m, uint32_t address) {
  flash_erase_part(m, address, m->array.erase_us, true);
}

void flash_program(struct machine *m, uint32_t address, const void *data) {
  struct flash_array *array = &m->array;
  const uint32_t size = array->program_bytes;
  const uint8_t *from = data;
  if (!begin(m, "write", address, array->write_us))
    return;
  array->programmed++;
  uint8_t *writes = &array->writes[address / array->counted_bytes];
  if (++*writes > array->most_writes) {
    machine_stop(m, RUN_FAULT,
                 "flash: more than %u writes at 0x%08x without an erase",
                 array->most_writes, address);
    return;
  }
  const bool cut = power_fails(m);
  for (uint32_t i = 0; i < (cut ? size / 2 : size); i++)
    m->flash[address + i] &= from[i];
}
