"""A package as C source, and a program that learns with it."""

from pathlib import Path

import numpy as np
from poet_host.schedule.schedule import Schedule
from support.learner_bench import (
    BATCH,
    RAW,
    RAW_OFFSET,
    RAW_SCALE,
    SEED,
    Kind,
    blocks,
    outputs_count,
    package,
    schedule,
    start,
    stored,
)


def _array(name: str, content: bytes) -> str:
    numbers = ",".join(map(str, content))
    return f"static const uint8_t {name}[] = {{{numbers}}};\n"


def _program(name: str, part: Schedule) -> tuple[str, str]:
    """Its arrays, and the initializer of its struct poet_program."""
    arrays = _array(f"{name}_model", part.model_part) + _array(f"{name}_plan", part.plan_part)
    return arrays, f"{{{name}_model, {name}_plan, sizeof {name}_model, sizeof {name}_plan, 0}}"


def _float(value: float) -> str:
    return f"{float(value).hex()}f"


def write(kind: Kind, folder: Path, name: str = "small") -> None:
    """Write NAME.h and NAME.c."""
    made, record = schedule(kind), package(kind).record
    assert made.forward is not None
    parts = (made, made.forward)
    arena = max(it.header.arena_bytes for it in parts)
    residents = max(1, *(it.header.resident_max for it in parts))
    transfers = max(1, *(it.header.queue_max for it in parts))
    tensors = max(len(it.model.tensors) for it in parts)
    sample_bytes = 12 * np.dtype(RAW[kind.raw]).itemsize
    most = max(blocks(kind, unit) for unit in ((0,) if kind.pages else range(9)))
    memory = f"{arena}u, {residents}u, {transfers}u, {1 + kind.pages}u, {tensors}u, {kind.classes}u"
    macros = {
        "MEMORY_BYTES": f"POET_MEMORY_BYTES({memory}, {kind.slots + 1}u, 0u)",
        "MEMORY_BYTES_WITHOUT_STORAGE":
            f"POET_MEMORY_BYTES({memory}, {kind.slots}u, {sample_bytes}u)",
        "STORAGE_BLOCKS": most, "SAMPLE_BYTES": sample_bytes, "SAMPLE_VALUES": 12,
        "OUTPUTS": outputs_count(kind), "CLASSES": kind.classes, "BATCH": BATCH,
        "TENSORS": len(stored(kind)),
    }  # fmt: skip
    lines = [f"#define {name}_{it} {value}\n" for it, value in macros.items()]
    (folder / f"{name}.h").write_text(
        f"#ifndef {name}_H\n#define {name}_H\n"
        '#include "poet/learner.h"\n#include "poet/package.h"\n'
        + "".join(lines)
        + '#ifdef __cplusplus\nextern "C" {\n#endif\n'
        f"extern const struct poet_package {name}_package;\n"
        f"extern const char *const {name}_tensor_names[];\n"
        f"extern const uint32_t {name}_tensor_bytes[];\n"
        "#ifdef __cplusplus\n}\n#endif\n#endif\n"
    )
    text = f'#include "{name}.h"\n'
    values = []
    for tensor in made.names[: made.model.stored_count]:
        content = start(kind)[tensor].astype("<f4").tobytes() if tensor in start(kind) else b""
        values.append(f"value_{len(values)}" if any(content) else "0")
        text += _array(values[-1], content) if any(content) else ""
    training, forward = (
        _program(it, part) for it, part in zip(("train", "infer"), parts, strict=True)
    )
    pair = (kind.normalization.scale, kind.normalization.offset)
    scale, offset = (",".join(map(_float, row)) for row in pair)
    sizes = ",".join(str(kind.graph[it].size_bytes) for it in stored(kind))
    (folder / f"{name}.c").write_text(
        f"{text}{training[0]}{forward[0]}"
        f"static const uint8_t *const values[] = {{{','.join(values)}}};\n"
        f"static const float scale[] = {{{scale}}}, offset[] = {{{offset}}};\n"
        f"const struct poet_package {name}_package = {{POET_PACKAGE_MAGIC, {training[1]}, "
        f"{forward[1]}, values, {record.values_crc}u, {_float(RAW_SCALE)}, {_float(RAW_OFFSET)}, "
        f"scale, offset, 2, 12, {outputs_count(kind)}, "
        f"{BATCH}, {SEED}, {record.data}, {record.label}, {kind.classes}, {kind.slots}, "
        f"POET_RAW_{kind.raw}, {str(kind.autoencoder).lower()}}};\n"
        f"const char *const {name}_tensor_names[] = {{"
        + ",".join(f'"{it}"' for it in stored(kind))
        + f"}};\nconst uint32_t {name}_tensor_bytes[] = {{{sizes}}};\n"
    )


# It learns from its first arguments' bytes: label and sample, one after another, on storage in RAM
# whose erase unit is UNIT, and prints its weights, then its outputs.
APP = """
#include <stdio.h>
#include <string.h>
#include "small.h"

#define BLOCKS (small_STORAGE_BLOCKS)
static uint8_t disk[BLOCKS][512];
static uint64_t memory[small_MEMORY_BYTES / 8];
static struct poet_learner learner;

static uint32_t micros(void *context) { return ++*(uint32_t *)context; }
static int read_block(void *context, uint32_t block, void *data) {
  (void)context;
  memcpy(data, disk[block], 512);
  return 0;
}
static int write_block(void *context, uint32_t block, const void *data) {
  (void)context;
  memcpy(disk[block], data, 512);
  return 0;
}
static int erase(void *context, uint32_t block) {
  (void)context;
  memset(disk[block], 0xff, UNIT * 512);
  return 0;
}

static int failed(const char *what, int result) {
  fprintf(stderr, "%s: %s\\n", what, poet_learner_text(result));
  return 1;
}

int main(int argc, char **argv) {
  uint32_t now = 0;
  struct poet_device device;
  int label;
  FILE *samples = fopen(argv[argc - 1], "rb");
  uint8_t sample[small_SAMPLE_BYTES], bytes[512];
  float outputs[small_OUTPUTS];
  memset(&device, 0, sizeof device);
  memset(disk, UNIT ? 0xff : 0, sizeof disk);
  device.context = &now;
  device.micros = micros;
  device.blocks = BLOCKS;
  device.read = read_block;
  device.write = write_block;
  device.erase_blocks = UNIT;
  device.erase = UNIT ? erase : NULL;
  int result = poet_learner_open(&learner, &small_package, &device, memory, sizeof memory);
  if (result) {
    return failed("open", result);
  }
  while ((label = getc(samples)) != EOF && fread(sample, sizeof sample, 1, samples)) {
    if ((result = poet_learner_teach(&learner, sample, (uint32_t)label)) != 0) {
      return failed("teach", result);
    }
  }
  fclose(samples);
  poet_learner_learn(&learner, 20);
  while ((result = poet_learner_poll(&learner, 50)) == POET_BUSY) {
  }
  if (result || (result = poet_learner_save(&learner)) != 0 ||
      (result = poet_learner_infer(&learner, sample, outputs)) != 0) {
    return failed("poll", result);
  }
  for (uint32_t i = 0; i < small_TENSORS; i++) {
    if ((result = poet_learner_read(&learner, i, 0, bytes, small_tensor_bytes[i])) != 0) {
      return failed(small_tensor_names[i], result);
    }
    fwrite(bytes, small_tensor_bytes[i], 1, stdout);
  }
  fwrite(outputs, sizeof outputs, 1, stdout);
  return 0;
}
"""
