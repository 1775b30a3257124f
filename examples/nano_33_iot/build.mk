# Build a program for a Nano 33 IoT from an example's main.c and a package (NAME, PACKAGE). The port
# is that of this repository, without its serial application.
FIRMWARE := $(EXAMPLES)/../firmware
BOARD := $(EXAMPLES)/nano_33_iot
PORT := $(FIRMWARE)/port
# Who builds the package. To make a library for the IDE, in the folder `library`:
# `make KIND=arduino PACKAGE=library library/package.json`
KIND := c
CC_ARM := arm-none-eabi-gcc
CORE := -mcpu=cortex-m0plus -mthumb
FLAGS := -std=c11 -Os -g -ffunction-sections -fdata-sections -Wall -Wextra -Werror \
  -DPOET_BOARD=nano_33_iot
INCLUDE := -I$(PACKAGE)/src -I$(BOARD) -I$(PORT)/samd21 -I$(PORT)/common
SOURCES = $(wildcard $(PACKAGE)/src/*.c) $(BOARD)/accelerometer.c $(BOARD)/board.c $(BOARD)/log.c \
  $(filter-out $(PORT)/common/main.c, $(wildcard $(PORT)/common/*.c)) \
  $(wildcard $(PORT)/samd21/*.c)
LINK := -nostartfiles --specs=nano.specs --specs=nosys.specs -Wl,--gc-sections -Wl,--emit-relocs \
  -Wl,--defsym=APPLICATION_STACK_BYTES=2176 \
  -Wl,--no-warn-rwx-segments -L$(PORT)/common -T$(PORT)/samd21/samd21.ld

$(NAME).elf: main.c $(PACKAGE)/package.json $(MAKEFILE_LIST)
	$(CC_ARM) $(CORE) $(FLAGS) $(INCLUDE) $(LINK) main.c $(MORE) $(SOURCES) -lm -o $@
	arm-none-eabi-size $@
