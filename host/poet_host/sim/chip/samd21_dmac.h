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
};

void samd21_dmac_raise(void *dmac);
void samd21_dmac_write_back(struct samd21_dmac *d, unsigned index);
void samd21_dmac_fetch(struct samd21_dmac *d, unsigned index, uint32_t address);
void samd21_dmac_serve(void *owner, uint64_t at);
