#include "vmm/acpi.h"
#include "base/cleanup.h"
#include "vmm/aml.h"
#include "vmm/layout.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* All numbers are little-endian, as is every machine this runs on. */

struct rsdp { /* 5.2.5.3 */
	char signature[8];
	uint8_t checksum;
	char oem[6];
	uint8_t revision;
	uint32_t rsdt, length;
	uint64_t xsdt;
	uint8_t extended_checksum, reserved[3];
} __attribute__((packed));

struct header { /* 5.2.6 */
	char signature[4];
	uint32_t length;
	uint8_t revision, checksum;
	char oem[6], oem_table[8];
	uint32_t oem_revision;
	char creator[4];
	uint32_t creator_revision;
} __attribute__((packed));

struct address { /* 5.2.3.2 */
	uint8_t space, bits, offset, access;
	uint64_t address;
} __attribute__((packed));

struct fadt { /* 5.2.9 */
	struct header header;
	uint32_t facs, dsdt;
	uint8_t legacy[65]; /* ports of hardware that a hardware-reduced machine does not have */
	uint16_t boot;      /* IA-PC boot architecture flags */
	uint8_t reserved;
	uint32_t flags;
	struct address reset;
	uint8_t reset_value;
	uint16_t arm_boot;
	uint8_t minor;
	uint64_t x_facs, x_dsdt;
	struct address x_legacy[8];
	struct address sleep_control, sleep_status;
	uint64_t hypervisor;
} __attribute__((packed));

struct madt { /* 5.2.12 */
	struct header header;
	uint32_t lapic, flags; /* flags: bit 0 would be: there are 8259s, too */
} __attribute__((packed));

struct madt_lapic {
	uint8_t type, length, processor, id;
	uint32_t flags;
} __attribute__((packed));

struct madt_ioapic {
	uint8_t type, length, id, reserved;
	uint32_t address, first_gsi;
} __attribute__((packed));

_Static_assert(sizeof(struct rsdp) == 36, "RSDP");
_Static_assert(sizeof(struct header) == 36, "table header");
_Static_assert(sizeof(struct fadt) == 276 && offsetof(struct fadt, flags) == 112 && offsetof(struct fadt, x_dsdt) == 140 && offsetof(struct fadt, sleep_control) == 244, "FADT");
_Static_assert(sizeof(struct madt) == 44 && sizeof(struct madt_lapic) == 8 && sizeof(struct madt_ioapic) == 12, "MADT");

enum {
	ADDRESS_IO = 1,
	ADDRESS_BYTE = 1,
	BOOT_NO_VGA = 1 << 2,
	BOOT_NO_RTC = 1 << 5, /* the clock is KVM's */
	FADT_WBINVD = 1 << 0,
	FADT_NO_POWER_BUTTON = 1 << 4,
	FADT_NO_SLEEP_BUTTON = 1 << 5,
	FADT_RESET = 1 << 10,
	FADT_HEADLESS = 1 << 12,
	FADT_HARDWARE_REDUCED = 1 << 20,
	LAPIC_ENABLED = 1,
	NOTIFY_GENERATION = 0x80,
};

/* Tables are put into `bytes`, which begins at ACPI_RSDP in the guest. This one begins with `n` bytes; returns where. */
static uint64_t begin(struct buf *bytes, const void *table, size_t n)
{
	static const char zeros[16];
	buf_add(bytes, zeros, -buf_len(bytes) % sizeof(zeros));
	uint64_t at = ACPI_RSDP + buf_len(bytes);
	buf_add(bytes, table, n);
	return at;
}

static struct header header(const char *signature, uint8_t revision)
{
	struct header h = {.revision = revision, .oem_revision = 1, .creator_revision = 1};
	memcpy(h.signature, signature, 4);
	memcpy(h.oem, "CUBICL", 6);
	memcpy(h.oem_table, "CUBICLVM", 8);
	memcpy(h.creator, "CUBI", 4);
	return h;
}

/* All bytes add up to 0. */
static uint8_t checksum(const void *p, size_t n)
{
	uint8_t sum = 0;
	for (size_t i = 0; i < n; i++)
		sum = (uint8_t)(sum - ((const uint8_t *)p)[i]);
	return sum;
}

/* The table goes from `at`, which is returned, to the end. */
static uint64_t finish(struct buf *bytes, uint64_t at)
{
	if (bytes->failed)
		return at;
	struct header *h = (void *)(bytes->data + bytes->start + (at - ACPI_RSDP));
	h->length = (uint32_t)(ACPI_RSDP + buf_len(bytes) - at);
	h->checksum = 0;
	h->checksum = checksum(h, h->length);
	return at;
}

/* --- what is there, in AML --- */

static void named_integer(struct buf *to, const char *name, uint64_t value)
{
	aml_name(to, name);
	aml_integer(to, value);
}

static void named_string(struct buf *to, const char *name, const char *text)
{
	aml_name(to, name);
	aml_string(to, text);
}

static void current_resources(struct buf *to, struct buf *resources)
{
	resource_end(resources);
	aml_name(to, "_CRS");
	aml_buffer(to, buf_str(resources));
	to->failed |= resources->failed;
	buf_done(resources);
}

static void virtio(struct buf *to, unsigned device, unsigned devices)
{
	struct buf resources = BUF_INIT;
	char name[5];
	snprintf(name, sizeof(name), "V%03u", device % 1000);
	size_t at = aml_device(to, name);
	named_string(to, "_HID", "LNRO0005");
	named_integer(to, "_UID", device);
	resource_memory(&resources, (uint32_t)(LAYOUT_MMIO + device * LAYOUT_MMIO_STEP), LAYOUT_MMIO_STEP);
	resource_interrupt(&resources, LAYOUT_GSI_FIRST + device % LAYOUT_GSI_COUNT, device >= LAYOUT_GSI_COUNT || device + LAYOUT_GSI_COUNT < devices);
	current_resources(to, &resources);
	aml_end(to, at);
}

static void serial_port(struct buf *to)
{
	struct buf resources = BUF_INIT;
	size_t at = aml_device(to, "COM1");
	aml_name(to, "_HID");
	aml_eisa_id(to, "PNP0501");
	named_integer(to, "_UID", 0);
	resource_io(&resources, LAYOUT_PORT_SERIAL, 8);
	resource_interrupt(&resources, LAYOUT_GSI_SERIAL, false);
	current_resources(to, &resources);
	aml_end(to, at);
}

/* Both names that Microsoft has for it. */
static void generation(struct buf *to)
{
	size_t at = aml_device(to, "VGEN");
	named_string(to, "_HID", "CUBI0001");
	aml_name(to, "_CID");
	size_t package = aml_package(to, 2);
	aml_string(to, "VM_Gen_Counter");
	aml_string(to, "VMGENCTR");
	aml_end(to, package);
	named_string(to, "_DDN", "VM_Gen_Counter");
	aml_name(to, "ADDR");
	package = aml_package(to, 2);
	aml_integer(to, ACPI_GENERATION & UINT32_MAX);
	aml_integer(to, ACPI_GENERATION >> 32);
	aml_end(to, package);
	aml_end(to, at);
}

static void events(struct buf *to)
{
	struct buf resources = BUF_INIT;
	size_t at = aml_device(to, "GED0");
	named_string(to, "_HID", "ACPI0013");
	named_integer(to, "_UID", 0);
	resource_interrupt(&resources, LAYOUT_GSI_EVENTS, false);
	current_resources(to, &resources);
	size_t method = aml_method(to, "_EVT", 1);
	size_t when = aml_if(to);
	aml_argument_is(to, 0, LAYOUT_GSI_EVENTS);
	aml_notify(to, "VGEN", NOTIFY_GENERATION);
	aml_end(to, when);
	aml_end(to, method);
	aml_end(to, at);
}

static uint64_t add_dsdt(struct buf *bytes, unsigned devices)
{
	const struct header h = header("DSDT", 2);
	uint64_t at = begin(bytes, &h, sizeof(h));
	aml_name(bytes, "\\_S5_");
	size_t package = aml_package(bytes, 2);
	aml_integer(bytes, ACPI_S5);
	aml_integer(bytes, 0);
	aml_end(bytes, package);
	size_t scope = aml_scope(bytes, "\\_SB_");
	serial_port(bytes);
	generation(bytes);
	events(bytes);
	for (unsigned i = 0; i < devices; i++)
		virtio(bytes, i, devices);
	aml_end(bytes, scope);
	return finish(bytes, at);
}

/* --- the other tables --- */

static struct address port(unsigned which)
{
	return (struct address){ADDRESS_IO, 8, 0, ADDRESS_BYTE, LAYOUT_PORT_POWER + which};
}

static uint64_t add_fadt(struct buf *bytes, uint64_t dsdt)
{
	const struct fadt t = {
		.header = header("FACP", 6),
		.minor = 3,
		.dsdt = (uint32_t)dsdt,
		.x_dsdt = dsdt,
		.boot = BOOT_NO_VGA | BOOT_NO_RTC,
		.flags = FADT_WBINVD | FADT_NO_POWER_BUTTON | FADT_NO_SLEEP_BUTTON | FADT_RESET | FADT_HEADLESS | FADT_HARDWARE_REDUCED,
		.reset = port(ACPI_RESET),
		.reset_value = ACPI_RESET_VALUE,
		.sleep_control = port(ACPI_SLEEP_CONTROL),
		.sleep_status = port(ACPI_SLEEP_STATUS),
	};
	return finish(bytes, begin(bytes, &t, sizeof(t)));
}

static uint64_t add_madt(struct buf *bytes, unsigned vcpus)
{
	const struct madt t = {.header = header("APIC", 5), .lapic = (uint32_t)LAYOUT_LAPIC};
	const struct madt_ioapic ioapic = {.type = 1, .length = sizeof(ioapic), .address = (uint32_t)LAYOUT_IOAPIC};
	uint64_t at = begin(bytes, &t, sizeof(t));
	for (unsigned i = 0; i < vcpus; i++) {
		const struct madt_lapic lapic = {.length = sizeof(lapic), .processor = (uint8_t)i, .id = (uint8_t)i, .flags = LAPIC_ENABLED};
		buf_add(bytes, &lapic, sizeof(lapic));
	}
	buf_add(bytes, &ioapic, sizeof(ioapic));
	return finish(bytes, at);
}

static uint64_t add_xsdt(struct buf *bytes, const uint64_t tables[], size_t n)
{
	const struct header h = header("XSDT", 1);
	uint64_t at = begin(bytes, &h, sizeof(h));
	buf_add(bytes, tables, n * sizeof(tables[0]));
	return finish(bytes, at);
}

static struct rsdp rsdp(uint64_t xsdt)
{
	struct rsdp r = {.revision = 2, .length = sizeof(r), .xsdt = xsdt};
	memcpy(r.signature, "RSD PTR ", 8);
	memcpy(r.oem, "CUBICL", 6);
	r.checksum = checksum(&r, 20);
	r.extended_checksum = checksum(&r, sizeof(r));
	return r;
}

int acpi_build(const struct guest_memory *m, unsigned vcpus, unsigned devices, struct error *err)
{
	static const struct rsdp room;
	cleanup_buf struct buf bytes = BUF_INIT;
	if (vcpus < 1 || vcpus > ACPI_VCPUS_MAX || devices > LAYOUT_DEVICES_MAX)
		return error_set(err, -EINVAL, 500, "a guest has 1 to %d processors and at most %d devices", ACPI_VCPUS_MAX, LAYOUT_DEVICES_MAX);
	buf_add(&bytes, &room, sizeof(room));
	const uint64_t dsdt = add_dsdt(&bytes, devices);
	const uint64_t fadt = add_fadt(&bytes, dsdt);
	const uint64_t tables[] = {fadt, add_madt(&bytes, vcpus)};
	const struct rsdp r = rsdp(add_xsdt(&bytes, tables, ARRAY_SIZE(tables)));
	if (bytes.failed)
		return error_set(err, -ENOMEM, 500, "no memory");
	char *to = memory_at(m, ACPI_RSDP, ACPI_END - ACPI_RSDP);
	if (!to || buf_len(&bytes) > ACPI_END - ACPI_RSDP)
		return error_set(err, -EINVAL, 500, "the ACPI tables do not fit into the guest's memory");
	memcpy(to, buf_str(&bytes).p, buf_len(&bytes));
	memcpy(to, &r, sizeof(r));
	return 0;
}

void acpi_set_generation(const struct guest_memory *m, const unsigned char id[16])
{
	void *to = memory_at(m, ACPI_GENERATION, 16);
	if (to)
		memcpy(to, id, 16);
}

enum acpi_request acpi_power_write(unsigned at, uint8_t value)
{
	if (at == ACPI_SLEEP_CONTROL && value == ACPI_POWER_OFF)
		return ACPI_OFF;
	if (at == ACPI_RESET && value == ACPI_RESET_VALUE)
		return ACPI_RESTART;
	return ACPI_NOTHING;
}
