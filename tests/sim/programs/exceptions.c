/* Order of entries and returns: priorities, nesting, tail, PRIMASK, SVC,
   PendSV, WFI. Each handler notes a letter; QEMU's order must be the same. */
#include "test.h"

static char order[128];
static volatile unsigned used;

static void note(char c) {
  order[used++] = c;
}

static void check_ipsr(uint32_t expected) {
  if (ipsr() != expected)
    note('!');
}

void svc_handler(void) {
  check_ipsr(11);
  note('s');
  ICSR = 1u << 28; /* PendSV, of lower priority: after this one */
  NVIC_ISPR = 1u << 1;
  note('S');
}

void pendsv_handler(void) {
  check_ipsr(14);
  note('p');
  NVIC_ISPR = 1u << 0; /* of higher priority: nests at once */
  __asm volatile("dsb\n isb");
  note('P');
}

void irq0_handler(void) {
  check_ipsr(16);
  note('a');
  NVIC_ISPR = 1u << 2; /* of the same priority: waits */
  __asm volatile("dsb\n isb");
  note('A');
}

void irq1_handler(void) {
  check_ipsr(17);
  note('b');
}

void irq2_handler(void) {
  check_ipsr(18);
  note('c');
}

void systick_handler(void) {
  check_ipsr(15);
  note('t');
  SYST_CSR = 0;
}

int main(void) {
  NVIC_IPR(0) = 0x40u | 0xc0u << 8 | 0x40u << 16; /* 0: 1, 1: 3, 2: 1 */
  SHPR2 = 0x80u << 24;                            /* SVC: 2 */
  SHPR3 = 0xc0u << 16 | 0x80u << 24;              /* PendSV: 3, SysTick: 2 */
  NVIC_ISER = 7;
  note('1');
  __asm volatile("svc 0");
  note('2');
  __asm volatile("cpsid i");
  NVIC_ISPR = 3;
  __asm volatile("dsb\n isb");
  note('3');
  __asm volatile("wfi"); /* wakes although masked */
  note('4');
  __asm volatile("cpsie i\n isb");
  note('5');
  NVIC_ICER = 2;
  NVIC_ISPR = 2; /* disabled: stays pending */
  __asm volatile("dsb\n isb");
  note('6');
  NVIC_ICPR = 2;
  NVIC_ISER = 2;
  __asm volatile("dsb\n isb");
  note('7');
  SYST_RVR = 2000;
  SYST_CVR = 0;
  SYST_CSR = 7;
  __asm volatile("wfi");
  note('8');
  order[used++] = '\n';
  print(order);
  return 0;
}
