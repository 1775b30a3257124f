/* sdstore.c - the content of a card, its registers CSD and CID, its times and
   its faults. The content is a shared mapping of the image file, so
   that a programmed block is in the file at once. Random numbers come from the
   seed: the same run has the same times and faults. */
#include "sdcard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static _Thread_local char error_text[256];

const char *sdcard_error(void) {
  return error_text;
}

/* CSD version 1 (5.3.2): a card has (C_SIZE + 1) * 2^(C_SIZE_MULT + 2) blocks.
 */
static bool standard_size(uint64_t blocks, unsigned *mult, uint32_t *size) {
  for (*mult = 0; *mult < 8; ++*mult) {
    uint64_t unit = 1u << (*mult + 2);
    if (blocks % unit == 0 && blocks / unit <= 4096) {
      *size = (uint32_t)(blocks / unit - 1);
      return true;
    }
  }
  return false;
}

/* CSD version 2 (5.3.3): a card has (C_SIZE + 1) * 512 KiB. */
static bool size_exists(const struct sdcard *card) {
  unsigned mult;
  uint32_t size;
  if (card->blocks == 0)
    return false;
  if (card->config.high_capacity)
    return card->blocks % 1024 == 0;
  return standard_size(card->blocks, &mult, &size);
}

bool sdstore_open(struct sdcard *card, const char *path) {
  struct stat status;
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0 || fstat(file, &status) != 0) {
    snprintf(error_text, sizeof error_text, "%s: %s", path, strerror(errno));
    if (file >= 0)
      close(file);
    return false;
  }
  card->blocks = (uint64_t)status.st_size / SD_BLOCK_BYTES;
  if (status.st_size % SD_BLOCK_BYTES != 0 || !size_exists(card)) {
    snprintf(error_text, sizeof error_text,
             "%s: no card has %lld bytes (a multiple of %s is needed)", path,
             (long long)status.st_size,
             card->config.high_capacity ? "512 KiB" : "2 KiB, up to 1 GiB");
    close(file);
    return false;
  }
  void *image = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE,
                     MAP_SHARED, file, 0);
  close(file);
  if (image == MAP_FAILED) {
    snprintf(error_text, sizeof error_text, "%s: %s", path, strerror(errno));
    return false;
  }
  card->image = image;
  return true;
}

void sdstore_close(struct sdcard *card) {
  munmap(card->image, card->blocks * SD_BLOCK_BYTES);
  free(card->blank);
}

static uint64_t draw(struct sdcard *card) { /* xorshift64* */
  card->random ^= card->random >> 12;
  card->random ^= card->random << 25;
  card->random ^= card->random >> 27;
  return card->random * 2685821657736338717u >> 32;
}

uint64_t sd_varied_ns(struct sdcard *card, uint32_t us) {
  uint64_t ns = us * (uint64_t)1000;
  uint64_t most = ns * card->config.spread_percent / 100;
  return ns + (most ? draw(card) % (most + 1) : 0);
}

const struct sd_fault *sd_fault_at(const struct sdcard *card,
                                   enum card_fault kind, uint64_t ordinal) {
  for (unsigned i = 0; i < card->fault_count; i++) {
    const struct sd_fault *fault = &card->faults[i];
    if (fault->kind == kind && ordinal - fault->first < fault->times)
      return fault;
  }
  return NULL;
}

static uint8_t *bytes_of(struct sdcard *card, uint64_t block) {
  uint8_t *base = card->blank ? card->blank : card->image;
  return base + block * SD_BLOCK_BYTES;
}

static void lose_erase_group(struct sdcard *card, uint64_t block) {
  uint64_t group = card->config.erase_group_blocks;
  uint64_t first = block / group * group;
  for (uint64_t b = first; b < first + group && b < card->blocks; b++) {
    uint8_t *bytes = bytes_of(card, b);
    for (unsigned i = 0; i < SD_BLOCK_BYTES; i++)
      bytes[i] = (uint8_t)draw(card);
  }
}

uint64_t sdstore_program(struct sdcard *card, uint64_t block,
                         const uint8_t *data) {
  uint64_t ordinal = ++card->counts.writes;
  const struct sd_fault *torn = sd_fault_at(card, CARD_TORN_WRITE, ordinal);
  const struct sd_fault *cut = sd_fault_at(card, CARD_POWER_CUT, ordinal);
  const struct sd_fault *astray =
      sd_fault_at(card, CARD_MISDIRECTED_WRITE, ordinal);
  const struct sd_fault *flip = sd_fault_at(card, CARD_FLIPPED_WRITE, ordinal);
  uint64_t to = block + (astray ? astray->argument : 0);
  size_t kept = torn ? torn->argument : SD_BLOCK_BYTES;
  if (sd_fault_at(card, CARD_DROPPED_WRITE, ordinal) || to >= card->blocks) {
    kept = 0;
    to = block;
  }
  if (cut) {
    card->power_lost = true;
    if (cut->argument)
      lose_erase_group(card, block);
    kept = draw(card) % (SD_BLOCK_BYTES + 1);
  }
  memcpy(bytes_of(card, to), data,
         kept < SD_BLOCK_BYTES ? kept : SD_BLOCK_BYTES);
  if (flip)
    bytes_of(card, to)[flip->argument / 8 % SD_BLOCK_BYTES] ^=
        (uint8_t)(1u << flip->argument % 8);
  return sdstore_busy_ns(card, block);
}

uint64_t sdstore_busy_ns(struct sdcard *card, uint64_t block) {
  const struct sdcard_config *config = &card->config;
  const struct sd_fault *slow =
      sd_fault_at(card, CARD_SLOW_WRITE, card->counts.writes);
  uint64_t ns =
      sd_varied_ns(card, card->many ? config->write_next_us : config->write_us);
  uint64_t group = block / config->erase_group_blocks;
  if (group != card->last_erase_group)
    ns += sd_varied_ns(card, config->erase_us);
  card->last_erase_group = group;
  if (config->stall_one_in && draw(card) % config->stall_one_in == 0)
    ns += config->stall_us * (uint64_t)1000;
  if (config->burst_blocks && card->counts.writes % config->burst_blocks == 0)
    ns += sd_varied_ns(card, config->burst_us);
  return ns + (slow ? slow->argument * (uint64_t)1000 : 0);
}

void sdstore_erase(struct sdcard *card, uint64_t first, uint64_t last) {
  memset(bytes_of(card, first), 0, (last - first + 1) * SD_BLOCK_BYTES);
}

static void put_bits(uint8_t *bytes, unsigned high, unsigned low,
                     uint32_t value) {
  for (unsigned bit = low; bit <= high; bit++)
    if (value >> (bit - low) & 1)
      bytes[15 - bit / 8] |= (uint8_t)(1u << bit % 8);
}

void sd_csd(const struct sdcard *card, uint8_t csd[16]) {
  memset(csd, 0, 16);
  put_bits(csd, 119, 112, 0x0e); /* TAAC: 1 ms */
  put_bits(csd, 103, 96, 0x32);  /* TRAN_SPEED: 25 MHz */
  put_bits(csd, 95, 84, 0x5b5);  /* CCC: classes 0, 2, 4, 5, 7, 8, 10 */
  put_bits(csd, 83, 80, 9);      /* READ_BL_LEN */
  if (card->config.high_capacity) {
    put_bits(csd, 127, 126, 1);
    put_bits(csd, 69, 48, (uint32_t)(card->blocks / 1024 - 1));
  } else {
    unsigned mult = 0;
    uint32_t size = 0;
    standard_size(card->blocks, &mult, &size);
    put_bits(csd, 73, 62, size);
    put_bits(csd, 49, 47, mult);
  }
  put_bits(csd, 46, 46, 1);    /* ERASE_BLK_EN */
  put_bits(csd, 45, 39, 0x7f); /* SECTOR_SIZE */
  put_bits(csd, 25, 22, 9);    /* WRITE_BL_LEN */
  put_bits(csd, 12, 12, card->config.write_protected);
  csd[15] = (uint8_t)(sd_crc7(csd, 15) << 1 | 1);
}

void sd_cid(const struct sdcard *card, uint8_t cid[16]) {
  memset(cid, 0, 16);
  memcpy(cid + 1, "SMPOET", 6); /* OID, start of PNM */
  memcpy(cid + 7, "SD", 1);
  cid[8] = 0x10;
  cid[12] = card->blank ? 2 : 1; /* serial number: which card it is */
  cid[15] = (uint8_t)(sd_crc7(cid, 15) << 1 | 1);
}

/* SD Status (4.10.2): AU_SIZE is bits 431 to 428. */
void sd_status(const struct sdcard *card, uint8_t status[SD_STATUS_BYTES]) {
  memset(status, 0, SD_STATUS_BYTES);
  status[63 - 431 / 8] = (uint8_t)(card->config.au_size << 4);
}

uint8_t sd_crc7(const uint8_t *data, uint32_t size_bytes) {
  uint8_t crc = 0; /* polynomial x^7 + x^3 + 1; CRC in the upper 7 bits */
  for (uint32_t i = 0; i < size_bytes; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++)
      crc = (uint8_t)(crc << 1 ^ (crc & 0x80 ? 0x09 << 1 : 0));
  }
  return crc >> 1;
}

uint16_t sd_crc16(const uint8_t *data, uint32_t size_bytes) {
  uint16_t crc = 0; /* x^16 + x^12 + x^5 + 1 */
  for (uint32_t i = 0; i < size_bytes; i++) {
    uint16_t t = (uint16_t)((crc >> 8 ^ data[i]) & 0xff);
    t ^= t >> 4;
    crc = (uint16_t)(crc << 8 ^ t << 12 ^ t << 5 ^ t);
  }
  return crc;
}
