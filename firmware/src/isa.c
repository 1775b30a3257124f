/*
 * isa.c - the rows of isa.def as text, and their CRC-32, the fingerprint.
 *
 * The preprocessor builds the text in flash: one line per row with its macro,
 * code, name and operands. Kernels are most of the rows, so their lines leave
 * the macro out. A host reads this text to name the rows in which the board
 * differs from the host. poet_host/isa.py builds the same text.
 */
#include "poet/poet.h"

const char poet_rows[] =
#define STATEMENT(code, name, operands, ...)                                   \
  "STATEMENT " #code " " #name " " operands "\n"
#include "poet/isa.def"
#define SINK(code, name, inputs, ...) "SINK " #code " " #name " " inputs "\n"
#include "poet/isa.def"
#define KERNEL(code, name, inputs, ...) #code " " #name " " inputs "\n"
#include "poet/isa.def"
    ;

uint32_t poet_rows_size(void) {
  return sizeof poet_rows - 1;
}

uint32_t poet_fingerprint(void) {
#ifdef POET_ROWS_CRC
  return POET_ROWS_CRC;
#else
  return poet_crc(0, poet_rows, sizeof poet_rows - 1);
#endif
}
