/* samd21_dmac.h - the interface between the two files of the DMAC's model. */
#pragma once

#include "samd21.h"

enum {
  CTRL_ENABLE = 2,
  CTRL_CRC = 4,
  CHANNEL_ENABLE = 2,
  FLAG_TERR = 1,
  FLAG_TCMPL = 2,
  FLAG_SUSP = 4,
  STATUS_FERR = 4,
  BEAT_TICKS = 4,
  /* CRCCTRL (20.8.2) */
  CRC_BEAT_SIZE = 3,
  CRC_32 = 1 << 2,
  CRC_UNKNOWN = 2 << 2 | 0xc000, /* reserved */
  CRC_SOURCE_IO = 1,
  CRC_SOURCE_CHANNEL = 0x20,
};

void samd21_dmac_raise(void *dmac);
void samd21_dmac_write_back(struct samd21_dmac *d, unsigned index);
void samd21_dmac_fetch(struct samd21_dmac *d, unsigned index, uint32_t address);
void samd21_dmac_serve(void *owner, uint64_t at);
/* Add bytes to the checksum. */
void samd21_dmac_crc(struct samd21_dmac *d, const uint8_t *bytes,
                     unsigned size);
