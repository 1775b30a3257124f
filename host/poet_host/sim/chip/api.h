/* api.h - the functions that Python calls. The host reads this same file,
   without the lines that begin with #, so it has only plain declarations. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)

enum run_result {
  RUN_SLICE,      /* the time of the slice is over */
  RUN_IDLE,       /* asleep: only input wakes it, or a timer after seconds */
  RUN_BREAKPOINT, /* a BKPT instruction; r0, r1 as the program set them */
  RUN_RESET,      /* the program requested a reset */
  RUN_POWER_CUT,  /* an injected power cut */
  RUN_FAULT,      /* something that the chip forbids or the model lacks */
};

/* Why a chip was reset. */
enum reset_cause {
  RESET_POWER_ON,
  RESET_PIN,
  RESET_SOFTWARE,
  RESET_WATCHDOG,
  RESET_LOCK_UP,
  RESET_BROWN_OUT,
};

/* Parts of a chip that machine_hang stops. */
enum hang {
  HANG_DMA, /* the card's DMA: transfers do not end */
  HANG_USB, /* the USB controller: its DMA, or the reset that its start needs */
  HANG_UART, /* the UART: no byte is sent */
  HANG_BUS,  /* of a SAMD21: DMA to RAM ends with a bus error */
};

struct machine_meter {
  uint64_t ticks;  /* ticks of machine_tick_hz */
  uint64_t cycles; /* core cycles, awake */
  uint64_t instructions;
  uint64_t asleep_ticks;
  uint64_t exceptions;
  uint64_t card_reading_ns, card_writing_ns;
  uint64_t card_reads, card_writes;    /* blocks */
  uint64_t flash_erases, flash_writes; /* of the chip's own flash */
  uint64_t flash_busy_ticks;           /* time of these */
  uint64_t stack_free_bytes; /* smallest distance of the stack to its limit */
  uint64_t sensor_nj;        /* energy of the sensor since power-on */
};

struct machine;

/* A chip without peripherals other than the core's own (tests of the core). */
struct machine *bare_new(bool m4, uint32_t flash_bytes, uint32_t ram_bytes);
void machine_free(struct machine *m);

bool machine_load(struct machine *m, uint32_t address, const uint8_t *data,
                  uint32_t size_bytes);
bool machine_peek(struct machine *m, uint32_t address, uint8_t *data,
                  uint32_t size_bytes);
void machine_set_stack_limit(struct machine *m, uint32_t address);
/* True: enter HardFault as the chip does. False: stop with a message. */
void machine_take_faults(struct machine *m, bool take);
/* Set the address of the vector table that a boot loader starts; 0: there is no
   boot loader. */
void machine_set_start(struct machine *m, uint32_t address);
/* Keep the content of the chip's flash in this open file, which has its size.
   Call this before machine_load. False: the file cannot be used. */
bool machine_flash_file(struct machine *m, int file);
/* Let the power fail during erase or write number `operation` of the flash,
   counted from 1; 0: never. */
void machine_flash_cut(struct machine *m, uint64_t operation);
uint32_t machine_flash_bytes(const struct machine *m);
/* Return true if the chip refuses to change its flash at this address. */
bool machine_flash_locked(const struct machine *m, uint32_t address);
void machine_reset(struct machine *m);
/* Cause of the reset after RUN_RESET. */
enum reset_cause machine_reset_cause(const struct machine *m);
/* Let a part of the chip hang from now on. */
void machine_hang(struct machine *m, enum hang part);
/* Set the supply voltage, which is 3,300 mV at first. */
void machine_set_supply(struct machine *m, uint32_t mv);
/* True: let time pass while only input from outside, or a timer after seconds,
   can wake the core. False: return RUN_IDLE. */
void machine_wait_idle(struct machine *m, bool wait);
enum run_result machine_run(struct machine *m, uint64_t ticks);
const char *machine_message(const struct machine *m);
void machine_meter(const struct machine *m, struct machine_meter *meter);
uint32_t machine_tick_hz(const struct machine *m);
/* Return core register `number`, 0 to 15; 16 is xPSR. */
uint32_t machine_register(struct machine *m, unsigned number);
/* After RUN_BREAKPOINT: set r0 and continue after the BKPT. */
void machine_continue(struct machine *m, uint32_t r0);
/* Access one register from outside, as the core would, but without a fault.
   False: the model does not cover the register, that width, or that value, or
   it would stop the machine. */
bool machine_read_register(struct machine *m, uint32_t address, unsigned size,
                           uint32_t *value);
bool machine_write_register(struct machine *m, uint32_t address, unsigned size,
                            uint32_t value);
/* Drive a peripheral's request line. */
void machine_irq(struct machine *m, unsigned irq, bool level);

/* -- the SD card -- */

enum card_fault {
  CARD_SLOW_READ,     /* the data come `argument` microseconds later */
  CARD_SLOW_WRITE,    /* the card is busy for `argument` more microseconds */
  CARD_READ_ERROR,    /* an error token instead of the data */
  CARD_READ_CRC,      /* one bit of the data arrives wrong */
  CARD_WRITE_CRC,     /* the card receives a wrong CRC and drops the block */
  CARD_WRITE_ERROR,   /* the card refuses the block */
  CARD_TORN_WRITE,    /* only the first `argument` bytes are stored; no error */
  CARD_DROPPED_WRITE, /* nothing is stored; no error */
  CARD_MISDIRECTED_WRITE, /* stored `argument` blocks further on; no error */
  CARD_FLIPPED_WRITE,     /* bit `argument` is stored inverted; no error */
  CARD_LATE_ERROR, /* this block and the rest of its write are not stored: the
                      data response of the block `argument` later reports it,
                      or, if there is none or it is 0, only CMD13 */
  CARD_REMOVED,    /* the card is removed at this block */
  CARD_SWAPPED,    /* an empty card replaces the card at this block */
  CARD_POWER_CUT,  /* the power fails while this block is programmed;
                      `argument` 1: its erase group is lost too */
};

struct sdcard_config {
  bool high_capacity;
  /* Within a write it understands only tokens. After a block that it refused it
     ignores all others, and understands the stop token and CMD12. It ignores
     CMD0 while it is busy. */
  bool strict;
  bool stopped_by_command; /* after a refused block, only by CMD12 */
  uint32_t response_bytes; /* N_CR: bytes before a response, 1..8 */
  uint32_t init_us;        /* from the first ACMD41 until ready */
  uint32_t read_first_us;  /* access time of the first block of a read */
  uint32_t read_next_us;   /* access time of the following blocks */
  uint32_t write_us;       /* busy after a block */
  uint32_t write_next_us;  /* busy after a block of a multi-block write */
  uint32_t erase_us;       /* additional time at the first block of a group */
  uint32_t stop_us;        /* busy after a multi-block transfer is stopped */
  uint32_t busy_bytes;     /* N_BR: bytes from a stop token to busy, 0..8 */
  uint32_t spread_percent; /* largest random increase of each time */
  uint32_t stall_one_in;   /* one of this many writes stalls; 0: none */
  uint32_t stall_us;       /* additional busy time of such a write */
  uint32_t burst_blocks;   /* blocks that the card buffers and then programs at
                              once; 0: it does not buffer */
  uint32_t burst_us;       /* additional busy time then */
  uint32_t erase_group_blocks; /* what a power cut can destroy */
  bool sd_status;              /* answers ACMD13 */
  /* code of the allocation unit in the SD Status; 9: 4 MiB, 0: not defined */
  uint32_t au_size;
  /* Wires: at a clock above `clean_khz`, about one of `noise_one_in` bytes has
     a wrong bit; 0: none. */
  uint32_t clean_khz, noise_one_in;
  bool refuses_supply;  /* in reply to CMD8: another voltage is needed */
  bool write_protected; /* by TMP_WRITE_PROTECT of its CSD */
  uint64_t seed;
};

struct sdcard_counts {
  uint64_t reads, writes; /* blocks */
  uint64_t commands, crc_errors;
  uint64_t announced; /* blocks: ACMD23 just before writes of many blocks */
  uint64_t reading_ns, writing_ns; /* access, transfer and busy times */
};

struct sdcard;

/* A card whose content is an image file. NULL if the file cannot be opened or a
   card cannot have this size; sdcard_error returns the reason. */
struct sdcard *sdcard_new(const char *path, const struct sdcard_config *config);
const char *sdcard_error(void);
void sdcard_free(struct sdcard *card);
/* Inject a fault for `times` blocks, from transferred block `first` on. Blocks
   count from 1, reads and writes separately; removal, swap and cut count
   writes. */
bool sdcard_add_fault(struct sdcard *card, enum card_fault kind, uint64_t first,
                      uint64_t times, uint32_t argument);
void sdcard_set_present(struct sdcard *card, bool present);
/* The host was reset, and its clock begins at 0 again. The card keeps its power
   and its state; it is deselected. */
void sdcard_new_host(struct sdcard *card);
void sdcard_select(struct sdcard *card, bool selected, uint64_t now_ns);
/* Exchange one byte; `now_ns` is its end, `byte_ns` its duration. */
uint8_t sdcard_exchange(struct sdcard *card, uint8_t mosi, uint64_t now_ns,
                        uint64_t byte_ns);
/* Return how the host has violated the specification, or NULL. */
const char *sdcard_complaint(const struct sdcard *card);
bool sdcard_power_lost(const struct sdcard *card);
void sdcard_counts(const struct sdcard *card, uint64_t now_ns,
                   struct sdcard_counts *counts);
uint8_t sd_crc7(const uint8_t *data, uint32_t size_bytes);
uint16_t sd_crc16(const uint8_t *data, uint32_t size_bytes);

/* -- what happens around a board -- */

struct motion {
  uint64_t at_ns; /* since power-on */
  double g[3];    /* acceleration of the axes x, y, z */
};
struct press {
  uint64_t from_ns, to_ns;
};
struct led_change {
  uint64_t at_ns;
  bool on;
};
struct scene;

/* A motion has at least one row. The rows' times ascend: each row holds until
   the next one, the first one also before its time, and the last one for ever.
 */
struct scene *scene_new(const struct motion *motion, uint32_t motion_count,
                        const struct press *presses, uint32_t press_count);
void scene_free(struct scene *s);
/* Let this chip be the board's. Its time goes on from that of the scene's
   earlier chip, which still exists. */
void machine_set_scene(struct machine *m, struct scene *s);
/* Take up to `most` changes of the LED. At most 4,096 are kept until then. */
uint32_t scene_take_led(struct scene *s, struct led_change *changes,
                        uint32_t most);

/* -- chips -- */

/* Pins are 32 * port + number. `function` is the setting of the multiplexer, 0
   for A. The selects are DOPO and DIPO of an SPI, TXPO and RXPO of a USART. */
struct samd21_pads {
  unsigned sercom, output_select, input_select, function;
  unsigned pins[4], pin_count;
};

struct samd21_config {
  struct samd21_pads spi, uart;
  struct samd21_pads i2c; /* of the sensor: SDA, SCL; without pins: none */
  unsigned card_select_pin;
  /* select of another device on the card's bus; 0: there is none */
  unsigned other_select_pin;
  /* The button closes to ground, the LED shines while its pin is high; 0: there
     is none. */
  unsigned button_pin, led_pin;
  uint32_t serial_number[4];
  bool no_crystal; /* the 32 kHz crystal does not start */
  enum reset_cause cause;
};

/* The caller keeps ownership of the card (NULL: none). */
struct machine *samd21_new(const struct samd21_config *config,
                           struct sdcard *card);

struct nrf52840_config { /* pins as in PSEL: 32 * port + number */
  unsigned spi_sck_pin, spi_mosi_pin, spi_miso_pin, card_select_pin;
  unsigned uart_tx_pin, uart_rx_pin;
  uint32_t device_id[2];
  enum reset_cause cause;
  uint32_t variant;    /* of the chip, as in FICR: 5 is revision 3 */
  uint32_t protection; /* UICR.APPROTECT; 0xffffffff: erased */
};

struct machine *nrf52840_new(const struct nrf52840_config *config,
                             struct sdcard *card);
uint32_t nrf52840_protection(const struct machine *m);
/* Return true if a debugger can read and write the chip now. */
bool nrf52840_debug_open(const struct machine *m);

/* The UART's line. _give sends bytes to the chip, where they arrive at the baud
   rate. _take returns the bytes that the chip has sent. */
uint32_t machine_serial_give(struct machine *m, const uint8_t *data,
                             uint32_t size_bytes);
uint32_t machine_serial_take(struct machine *m, uint8_t *data,
                             uint32_t size_bytes);
uint32_t machine_serial_waiting(const struct machine *m);

/* -- USB: a second serial port, once the cable is in -- */

enum usb_state {
  USB_ABSENT, /* no cable, or no device connected to it */
  USB_ENUMERATING,
  USB_READY,
  USB_FAILED, /* not a serial port: see machine_usb_complaint */
};

struct usb_request { /* one control transfer of the host */
  uint8_t setup[8];
  uint8_t address;
  int result; /* bytes; -1: stalled, -2: no answer, -3: pending */
  uint8_t data[256];
};

void machine_usb_plug(struct machine *m, bool in);
enum usb_state machine_usb_state(const struct machine *m);
const char *machine_usb_complaint(const struct machine *m);
/* A program on the host opens the port with a baud rate, or closes it. The port
   is open after the host has sent both settings to the device. */
void machine_usb_open(struct machine *m, bool open, uint32_t baud);
bool machine_usb_is_open(const struct machine *m);
/* Send bytes to the port, and take bytes from it. */
uint32_t machine_usb_give(struct machine *m, const uint8_t *data,
                          uint32_t size_bytes);
uint32_t machine_usb_take(struct machine *m, uint8_t *data,
                          uint32_t size_bytes);
uint32_t machine_usb_waiting(const struct machine *m);
void machine_usb_suspend(struct machine *m, bool suspend);
/* Reset the bus and enumerate again. */
void machine_usb_reset(struct machine *m);
/* Start any control transfer on the enumerated device; machine_usb_answer
   returns its result (as in usb_request). */
void machine_usb_ask(struct machine *m, const uint8_t setup[8],
                     const uint8_t *data, uint32_t size_bytes);
/* The same as machine_usb_ask, but at once: a transfer in progress is aborted,
   and its running transaction lost. The SETUP takes no bus time, so that it can
   come at any moment of the device's interrupt handler. On a real bus, it does
   so if the interrupt is late. */
void machine_usb_interject(struct machine *m, const uint8_t setup[8],
                           const uint8_t *data, uint32_t size_bytes);
int machine_usb_answer(const struct machine *m, uint8_t data[512]);
/* Number of control transfers so far; and a transfer by its number, if it is
   one of the latest 64. */
uint32_t machine_usb_requests(const struct machine *m);
struct usb_request machine_usb_request(const struct machine *m,
                                       uint32_t number);

/* Size, cycles and flags of one instruction (decode.h). Used to scan a program
   for instructions that its core lacks. */
struct decoded {
  unsigned size_bytes, cycles;
  bool illegal, floating_point;
};
struct decoded machine_decode(bool m4, uint16_t first, uint16_t second);

#pragma GCC visibility pop
