/*
 * The ACPI tables (ACPI 6.5, hardware-reduced) that tell a guest what it has: processors, IOAPIC, the serial port, the virtio devices, the generation id (Microsoft's "Virtual Machine
 * Generation ID"), and how it turns itself off. Layout.h says where these are.
 */
#ifndef CUBICLE_VMM_ACPI_H
#define CUBICLE_VMM_ACPI_H

#include "vmm/memory.h"

#define ACPI_RSDP 0xe0000ull       /* where the tables begin; they end before ACPI_END */
#define ACPI_END 0xf0000ull
#define ACPI_GENERATION 0x9f000ull /* a page that the guest's kernel leaves alone; the id is its first 16 bytes */

enum { ACPI_VCPUS_MAX = 254 };

/* Writes the tables for so many processors (local APIC ids 0, 1, …) and virtio devices. The generation id is not touched. 0 or -errno. */
int acpi_build(const struct guest_memory *m, unsigned vcpus, unsigned devices, struct error *err);

/* Sets the generation id. A guest that has seen another one learns of it by an interrupt (edge) on LAYOUT_GSI_EVENTS, after this. */
void acpi_set_generation(const struct guest_memory *m, const unsigned char id[16]);

/* I/O ports, one byte each, from LAYOUT_PORT_POWER on. All read 0. */
enum acpi_power_port { ACPI_SLEEP_CONTROL, ACPI_SLEEP_STATUS, ACPI_RESET, ACPI_POWER_PORTS };
enum {
	ACPI_S5 = 5,                           /* SLP_TYP of "off", from \_S5 */
	ACPI_POWER_OFF = ACPI_S5 << 2 | 1 << 5, /* written to the sleep control register: SLP_TYP, SLP_EN */
	ACPI_RESET_VALUE = 1,                  /* written to the reset register */
};
enum acpi_request { ACPI_NOTHING, ACPI_OFF, ACPI_RESTART };
/* What a guest wants that writes the byte to LAYOUT_PORT_POWER + port. */
enum acpi_request acpi_power_write(unsigned port, uint8_t value);

#endif
