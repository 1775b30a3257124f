"""What a card that was not initialised says about its wires and its supply.

The commands are those of the SD Physical Layer Specification, chapter 7. The firmware sends them in
the order of firmware/port/common/card_mount.c. poet_card has the last one, and the response to it.
"""

from typing import Any

NO_RESPONSE = 0xFF
_START_COMMANDS = (0, 8, 9, 10, 41, 55, 59)
_IDLE, _ILLEGAL, _CRC = 1, 4, 8  # bits of R1
WIRES = "shorten the wires of the card to 10 cm at most, with a ground wire next to SCK"
CONTACTS = "check the contacts of the card, its wires and its supply; then try another card"
SUPPLY = "use a shorter USB cable or a stronger supply, and measure 2.7 V or more at the card"
_START = "measure 2.7 to 3.6 V at the card while it starts, when it draws up to 100 mA"


def mount_failure(card: Any) -> tuple[str, str]:
    """Return at which step the initialisation of a card has failed, and what to do.

    `card`: the board's poet_card after the failure.
    """
    command, response = int(card.command), int(card.response)
    answer = f"with {response:#04x}" if response != NO_RESPONSE else "not at all"
    if command == 0 and response == NO_RESPONSE:
        return (
            "no card answers to CMD0, the first command",
            "insert the card; then check its supply, the wires of CS, SCK, MOSI and MISO, and a "
            "pull-up at MISO. If the board has no card, use --no-storage",
        )
    if command == 0:
        return (
            f"the card answers to CMD0 {answer}, but should with 0x01",
            f"check that MISO and MOSI are not exchanged, and that no other device drives MISO; "
            f"{WIRES}",
        )
    if command == 8 and response == _IDLE:
        return (
            "the card refuses the supply voltage (CMD8)",
            "use a card for 2.7 to 3.6 V, and measure the voltage at the card",
        )
    if command in (55, 41) and response == _IDLE:
        return (
            "the card does not finish its start, but stays in its idle state (ACMD41)",
            f"{_START}; then try another card",
        )
    if command in (55, 41) and response != NO_RESPONSE and response & _ILLEGAL:
        return (
            f"the card does not know CMD{command}, so it is not an SD card",
            "use an SD or SDHC card; an MMC card does not work",
        )
    if response & _CRC and response != NO_RESPONSE:
        return (f"the card received CMD{command} with a wrong CRC at {_clock(card)}", WIRES)
    if command in (9, 10) and response == 0:
        register = "CSD" if command == 9 else "CID"
        return (
            f"the register {register} of the card did not arrive whole at {_clock(card)}",
            f"{WIRES}; {_START}",
        )
    if command not in _START_COMMANDS:
        return f"the card starts, but no block can be read at {_clock(card)}", CONTACTS
    return f"the card answered earlier commands, but to CMD{command} {answer}", CONTACTS


def transfer_failure(card: Any, khz_before: int) -> tuple[str, str]:
    """Return why blocks could not be moved, and what to do.

    `khz_before`: the clock of the card's bus before the transfer.
    """
    if card.supply_is_low:
        return "the supply is too low to write to the card", SUPPLY
    if card.khz < khz_before:
        return (
            f"CRCs are wrong even at {_clock(card)}, down from {khz_before:,} kHz",
            f"{WIRES}; check the contacts of the card",
        )
    if card.response == NO_RESPONSE:
        return f"the card does not answer any more (CMD{card.command})", CONTACTS
    return f"the card reports that it cannot move a block, at {_clock(card)}", CONTACTS


def _clock(card: Any) -> str:
    return f"{card.khz:,} kHz"
