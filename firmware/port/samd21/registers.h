/* registers.h - the registers of the SAM D21 that this port uses. Section
 * numbers are those of the data sheet DS40001882D. */
#ifndef POET_SAMD21_REGISTERS_H
#define POET_SAMD21_REGISTERS_H

#include <stdint.h>

#define REG32(address) (*(volatile uint32_t *)(address))
#define REG16(address) (*(volatile uint16_t *)(address))
#define REG8(address) (*(volatile uint8_t *)(address))

/* 16: Power Manager */
#define PM_APBCMASK REG32(0x40000420)
#define APBC_SERCOM(n) (1u << (2 + (n)))
#define APBC_TC4 (1u << 12)
#define APBC_TC5 (1u << 13)

#define PM_RCAUSE REG8(0x40000438)
#define RCAUSE_POR 1u
#define RCAUSE_BOD 6u /* BOD12 and BOD33 */
#define RCAUSE_EXT 0x10u
#define RCAUSE_WDT 0x20u
#define RCAUSE_SYST 0x40u

/* 18: Watchdog Timer */
#define WDT_CTRL REG8(0x40001000)
#define WDT_CONFIG REG8(0x40001001)
#define WDT_EWCTRL REG8(0x40001002)
#define WDT_INTENSET REG8(0x40001005)
#define WDT_INTFLAG REG8(0x40001006)
#define WDT_STATUS REG8(0x40001007)
#define WDT_CLEAR REG8(0x40001008)
#define WDT_ENABLE 2u
#define WDT_16384_CYCLES 11u
#define WDT_8192_CYCLES 10u
#define WDT_EW 1u
#define WDT_SYNCBUSY 0x80u
#define WDT_KEY 0xa5u

/* 17: System Controller */
#define SYSCTRL_PCLKSR REG32(0x4000080c)
#define SYSCTRL_XOSC32K REG16(0x40000814)
#define SYSCTRL_DFLLCTRL REG16(0x40000824)
#define SYSCTRL_DFLLVAL REG32(0x40000828)
#define SYSCTRL_DFLLMUL REG32(0x4000082c)
#define SYSCTRL_BOD33 REG32(0x40000834)
#define PCLKSR_XOSC32KRDY (1u << 1)
#define PCLKSR_DFLLRDY (1u << 4)
#define PCLKSR_DFLLLCK (3u << 6)
#define PCLKSR_BOD33RDY (1u << 9)
#define PCLKSR_BOD33DET (1u << 10)
#define PCLKSR_B33SRDY (1u << 11)
#define BOD33_ENABLE (1u << 1)
#define BOD33_HYST (1u << 2)
#define BOD33_RESET (1u << 3)
#define BOD33_LEVEL(level) ((uint32_t)(level) << 16)
#define XOSC32K_ENABLE (1u << 1)
#define XOSC32K_XTALEN (1u << 2)
#define XOSC32K_EN32K (1u << 3)
#define XOSC32K_STARTUP_2S (6u << 8)
#define DFLL_ENABLE (1u << 1)
#define DFLL_MODE (1u << 2)
#define DFLL_USBCRM (1u << 5)
#define DFLL_CCDIS (1u << 8)
#define DFLL_CALIBRATION REG32(0x00806024) /* 10.3.2: bits 26 to 31 */

/* 15: Generic Clock Controller */
#define GCLK_STATUS REG8(0x40000c01)
#define GCLK_CLKCTRL REG16(0x40000c02)
#define GCLK_GENCTRL REG32(0x40000c04)
#define GCLK_GENDIV REG32(0x40000c08)
#define GCLK_SYNCBUSY 0x80u
#define GCLK_SOURCE_OSCULP32K (3u << 8)
#define GCLK_SOURCE_XOSC32K (5u << 8)
#define GCLK_SOURCE_DFLL (7u << 8)
#define GCLK_GENEN (1u << 16)
#define GCLK_DIVSEL (1u << 20) /* divide by 2 to the power of DIV + 1 */
#define GCLK_CLKEN (1u << 14)
#define GCLK_CHANNEL_DFLL 0u
#define GCLK_CHANNEL_WDT 3u
#define GCLK_CHANNEL_USB 6u
#define GCLK_CHANNEL_SERCOM(n) (0x14u + (n))
#define GCLK_CHANNEL_TC4_TC5 0x1cu

/* 22: NVM Controller */
#define NVMCTRL_CTRLA REG16(0x41004000)
#define NVMCTRL_KEY 0xa500u
#define NVMCTRL_ERASE_ROW 0x02u
#define NVMCTRL_WRITE_PAGE 0x04u
#define NVMCTRL_CLEAR_BUFFER 0x44u
#define NVMCTRL_INVALIDATE 0x46u /* all lines of the cache */
#define NVMCTRL_INTFLAG REG8(0x41004014)
#define NVMCTRL_READY 1u
#define NVMCTRL_ADDR REG32(0x4100401c) /* counts 16-bit words */
#define NVMCTRL_LOCK_REGION 0x40u      /* of ADDR, until a reset */
#define NVMCTRL_CTRLB REG32(0x41004004)
#define NVMCTRL_RWS_1 (1u << 1)
#define NVMCTRL_MANW (1u << 7) /* a page is written by a command only */

/* 23: PORT */
#define PORT_DIRSET(group) REG32(0x41004408 + 0x80 * (group))
#define PORT_OUTCLR(group) REG32(0x41004414 + 0x80 * (group))
#define PORT_OUTSET(group) REG32(0x41004418 + 0x80 * (group))
#define PORT_IN(group) REG32(0x41004420 + 0x80 * (group))
#define PORT_PMUX(pin) REG8(0x41004430 + 0x80 * ((pin) / 32) + (pin) % 32 / 2)
#define PORT_PINCFG(pin) REG8(0x41004440 + 0x80 * ((pin) / 32) + (pin) % 32)
#define PINCFG_PMUXEN 1u
#define PINCFG_INEN 2u
#define PINCFG_PULLEN 4u /* pull-up if OUT is set */
#define PINCFG_DRVSTR 0x40u
#define FUNCTION_C 2u
#define FUNCTION_D 3u
#define FUNCTION_G 6u

/* 26, 27: SERCOM */
#define SERCOM_CTRLA(n) REG32(0x42000800 + 0x400 * (n))
#define SERCOM_CTRLB(n) REG32(0x42000804 + 0x400 * (n))
#define SERCOM_BAUD16(n) REG16(0x4200080c + 0x400 * (n))
#define SERCOM_BAUD8(n) REG8(0x4200080c + 0x400 * (n))
#define SERCOM_INTENSET(n) REG8(0x42000816 + 0x400 * (n))
#define SERCOM_INTFLAG(n) REG8(0x42000818 + 0x400 * (n))
#define SERCOM_SYNCBUSY(n) REG32(0x4200081c + 0x400 * (n))
#define SERCOM_DATA_ADDRESS(n) (0x42000828u + 0x400 * (n))
#define SERCOM_DATA(n) REG16(SERCOM_DATA_ADDRESS(n))
#define SERCOM_ENABLE (1u << 1)
#define SERCOM_USART (1u << 2)
#define SERCOM_SPI_HOST (3u << 2)
#define SERCOM_SAMPR_FRACTIONAL (1u << 13)
#define SERCOM_OUTPUT(pads) ((uint32_t)(pads) << 16)
#define SERCOM_INPUT(pad) ((uint32_t)(pad) << 20)
#define SERCOM_LSB_FIRST (1u << 30)
#define SERCOM_TXEN (1u << 16)
#define SERCOM_RXEN (1u << 17)
#define SERCOM_DRE 1u
#define SERCOM_TXC 2u
#define SERCOM_RXC 4u

/* 30: TC, in 32 bits */
#define TC4_CTRLA REG16(0x42003000)
#define TC4_READREQ REG16(0x42003002)
#define TC4_INTENCLR REG8(0x4200300c)
#define TC4_INTENSET REG8(0x4200300d)
#define TC4_INTFLAG REG8(0x4200300e)
#define TC4_STATUS REG8(0x4200300f)
#define TC4_COUNT REG32(0x42003010)
#define TC4_CC(n) REG32(0x42003018 + 4 * (n))
#define TC_ENABLE (1u << 1)
#define TC_COUNT32 (2u << 2)
#define TC_PRESCALER_16 (4u << 8)
#define TC_RREQ (1u << 15)
#define TC_SYNCBUSY 0x80u
#define TC_MC(n) (0x10u << (n))

/* 20: DMA Controller */
#define DMAC_CTRL REG16(0x41004800)
#define DMAC_CRCCTRL REG16(0x41004802)
#define DMAC_CRCDATAIN REG32(0x41004804)
#define DMAC_CRCCHKSUM REG32(0x41004808)
#define DMAC_CRCSTATUS REG8(0x4100480c)
#define DMAC_INTPEND REG16(0x41004820)
#define DMAC_BASEADDR REG32(0x41004834)
#define DMAC_WRBADDR REG32(0x41004838)
#define DMAC_CHID REG8(0x4100483f)
#define DMAC_CHCTRLA REG8(0x41004840)
#define DMAC_CHCTRLB REG32(0x41004844)
#define DMAC_CHINTENSET REG8(0x4100484d)
#define DMAC_CHINTFLAG REG8(0x4100484e)
#define DMAC_ENABLE 2u
#define DMAC_CRCENABLE 4u
#define DMAC_CRCBUSY 1u
#define DMAC_LEVELS (0xfu << 8)
#define DMAC_CRC_OF_CHANNEL(n) ((0x20u + (n)) << 8)
#define DMAC_CRC_OF_BYTES (1u << 8)                /* CRC-16 of CRCDATAIN */
#define DMAC_CRC_OF_WORDS (1u << 8 | 1u << 2 | 2u) /* CRC-32 of CRCDATAIN */
#define DMAC_TRIGGER(number) ((uint32_t)(number) << 8)
#define DMAC_TRIGGER_SERCOM_RX(n) DMAC_TRIGGER(1 + 2 * (n))
#define DMAC_TRIGGER_SERCOM_TX(n) DMAC_TRIGGER(2 + 2 * (n))
#define DMAC_ONE_BEAT (2u << 22)
#define DMAC_TERR 1u
#define DMAC_TCMPL 2u
#define BTCTRL_VALID 1u
#define BTCTRL_SRCINC (1u << 10)
#define BTCTRL_DSTINC (1u << 11)

struct dma_descriptor { /* 20.10 */
  uint16_t control;
  uint16_t count;
  uint32_t source;      /* end address of the source if BTCTRL_SRCINC is set */
  uint32_t destination; /* likewise */
  uint32_t next;
};

/* Section 32: USB, in device mode. Bank 0 of an endpoint receives, bank 1
 * sends. */
#define USB_CTRLA REG8(0x41005000)
#define USB_SYNCBUSY REG8(0x41005002)
#define USB_QOSCTRL REG8(0x41005003)
#define USB_CTRLB REG16(0x41005008)
#define USB_DADD REG8(0x4100500a)
#define USB_FSMSTATUS REG8(0x4100500d)
#define USB_INTENCLR REG16(0x41005014)
#define USB_INTENSET REG16(0x41005018)
#define USB_INTFLAG REG16(0x4100501c)
#define USB_DESCADD REG32(0x41005024)
#define USB_PADCAL REG16(0x41005028)
#define USB_EPCFG(n) REG8(0x41005100 + 0x20 * (n))
#define USB_EPSTATUSCLR(n) REG8(0x41005104 + 0x20 * (n))
#define USB_EPSTATUSSET(n) REG8(0x41005105 + 0x20 * (n))
#define USB_EPINTFLAG(n) REG8(0x41005107 + 0x20 * (n))
#define USB_EPINTENSET(n) REG8(0x41005109 + 0x20 * (n))
#define USB_SWRST 1u
#define USB_ENABLE 2u
#define USB_QOS_HIGH 0xfu /* USB has memory priority over the core */
#define USB_FULL_SPEED 0u
#define USB_ADDEN 0x80u
#define USB_FSM_SUSPEND 4u
#define USB_SUSPEND 1u
#define USB_EORST 8u
#define USB_WAKEUP 0x10u
#define USB_CONTROL 0x11u /* both banks */
#define USB_BULK(bank) (3u << 4 * (bank))
#define USB_INTERRUPT(bank) (4u << 4 * (bank))
#define USB_DTGL(bank) (1u << (bank))
#define USB_STALLRQ(bank) (0x10u << (bank))
#define USB_BKRDY(bank) (0x40u << (bank))
#define USB_TRCPT(bank) (1u << (bank))
#define USB_RXSTP 0x10u
#define USB_EPINT_ALL 0x7fu
#define USB_SIZE_8 0u
#define USB_SIZE_64 (3u << 28)
#define USB_BYTES 0x3fffu
#define USB_MULTI_PACKET(bytes) ((uint32_t)(bytes) << 14) /* total */

struct usb_bank { /* 32.8.4 */
  volatile uint32_t address;
  volatile uint32_t packet_size;
  uint32_t unused[2]; /* link power management and error flags */
};

/* Cortex-M0+: NVIC and SCB */
#define NVIC_ISER REG32(0xe000e100)
#define NVIC_ICER REG32(0xe000e180)
#define NVIC_IPR(n) REG32(0xe000e400 + 4 * ((n) / 4))
#define SCB_VTOR REG32(0xe000ed08)
#define SCB_AIRCR REG32(0xe000ed0c)
#define AIRCR_SYSRESETREQ 0x05fa0004u
#define IRQ_WDT 2u
#define IRQ_DMAC 6u
#define IRQ_USB 7u
#define IRQ_SERCOM5 14u
#define IRQ_TC4 19u

/* Section 10.3.2: calibration of the USB pads. Section 10.3.3: serial
 * number. */
#define USB_CALIBRATION REG32(0x00806024)
#define SERIAL_WORD_0 REG32(0x0080a00c)
#define SERIAL_WORD_3 REG32(0x0080a048)

/* Arduino's boot loader for the MKR1000 stays active after a reset if the last
 * word of RAM has this value (its bootloaders/zero/main.c). */
#define BOOT_LOADER_WORD REG32(0x20007ffc)
#define BOOT_LOADER_STAY 0x07738135u

#endif
