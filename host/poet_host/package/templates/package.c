static const uint8_t *const values[] = $values;
static const float scale[] = $scale;
static const float offset[] = $offset;

const struct poet_package ${name}_package = {
    POET_PACKAGE_MAGIC,
    $training,
    $forward,
    values,
    ${crc}u, /* of the values */
    $raw_scale, /* of raw values */
    $raw_offset,
    scale,
    offset,
    $channels, /* channels */
    $sample_values,
    $outputs,
    $batch,
    $seed, /* of the choice of samples */
    $data, /* input tensors */
    $label,
    $classes,
    $slots,
    POET_RAW_${raw},
    $repeats,
};

const char *const ${name}_class_names[] = $class_names;
const char *const ${name}_tensor_names[] = $tensor_names;
const uint32_t ${name}_tensor_bytes[] = $sizes;
