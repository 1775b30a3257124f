/* isa.h - the rows of isa.def as C constants, such as POET_KERNEL_conv2d = 1.
 */
#ifndef POET_ISA_H
#define POET_ISA_H

enum poet_statement_code {
#define STATEMENT(code, name, ...) POET_STATEMENT_##name = (code),
#include "isa.def"
};

enum poet_sink_code {
#define SINK(code, name, ...) POET_SINK_##name = (code),
#include "isa.def"
};

enum poet_kernel_code {
#define KERNEL(code, name, ...) POET_KERNEL_##name = (code),
#include "isa.def"
};

#endif
