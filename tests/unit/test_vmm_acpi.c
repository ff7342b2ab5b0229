#include "unit.h"

#include "base/cleanup.h"
#include "vmm/acpi.h"
#include "vmm/aml.h"
#include "vmm/layout.h"

/* The tables as a guest would find them, and the devices of the DSDT by a reader of its own. `iasl -d` has agreed with this once. */

static uint64_t number(const void *at, unsigned n)
{
	uint64_t value = 0;
	memcpy(&value, at, n);
	return value;
}

static unsigned sum(const void *p, size_t n)
{
	unsigned value = 0;
	for (size_t i = 0; i < n; i++)
		value += ((const unsigned char *)p)[i];
	return value & 0xff;
}

static const char *table(const struct guest_memory *m, uint64_t address, const char *signature)
{
	assert_true(address > ACPI_RSDP && address < ACPI_END);
	const char *t = memory_at(m, address, 36);
	assert_memory_equal(t, signature, 4);
	assert_true(address + number(t + 4, 4) <= ACPI_END);
	assert_int_equal(sum(t, number(t + 4, 4)), 0);
	return t;
}

static const char *find(const struct guest_memory *m, unsigned i, const char *signature)
{
	const char *rsdp = memory_at(m, ACPI_RSDP, 36);
	assert_memory_equal(rsdp, "RSD PTR ", 8);
	assert_int_equal(sum(rsdp, 20), 0);
	assert_int_equal(sum(rsdp, 36), 0);
	const char *xsdt = table(m, number(rsdp + 24, 8), "XSDT");
	assert_int_equal(number(xsdt + 4, 4), 36 + 2 * 8);
	return table(m, number(xsdt + 36 + 8 * i, 8), signature);
}

static void build(struct guest_memory *m, unsigned vcpus, unsigned devices)
{
	struct error err = {0};
	assert_int_equal(memory_map(m, 2 << 20, -1, 0, &err), 0);
	assert_int_equal(acpi_build(m, vcpus, devices, &err), 0);
}

static void test_fadt(void **state)
{
	struct guest_memory m;
	build(&m, 1, 0);
	const char *t = find(&m, 0, "FACP");
	assert_int_equal(number(t + 4, 4), 276);
	assert_int_equal(number(t + 112, 4) & (1 << 20 | 1 << 10), 1 << 20 | 1 << 10);
	assert_int_equal(number(t + 40, 4), number(t + 140, 8));
	/* Reset, sleep control, sleep status: bytes of I/O. */
	static const struct {
		unsigned at, port;
	} registers[] = {{116, ACPI_RESET}, {244, ACPI_SLEEP_CONTROL}, {256, ACPI_SLEEP_STATUS}};
	for (size_t i = 0; i < ARRAY_SIZE(registers); i++) {
		assert_memory_equal(t + registers[i].at, "\1\10\0\1", 4);
		assert_int_equal(number(t + registers[i].at + 4, 8), LAYOUT_PORT_POWER + registers[i].port);
	}
	assert_int_equal(number(t + 128, 1), ACPI_RESET_VALUE);
	memory_unmap(&m);
}

static void test_power(void **state)
{
	/* What Linux writes: the type of \_S5 in bits 2 to 4, SLP_EN. */
	assert_int_equal(acpi_power_write(0, 0x34), ACPI_OFF);
	assert_int_equal(acpi_power_write(1, 0x34), ACPI_NOTHING);
	assert_int_equal(acpi_power_write(0, 0x30), ACPI_NOTHING);
	assert_int_equal(acpi_power_write(2, 1), ACPI_RESTART);
	assert_int_equal(acpi_power_write(2, 0), ACPI_NOTHING);
	assert_int_equal(acpi_power_write(1, 0x80), ACPI_NOTHING);
}

static void test_madt(void **state)
{
	struct guest_memory m;
	for (unsigned vcpus = 1; vcpus <= ACPI_VCPUS_MAX; vcpus += 253) {
		build(&m, vcpus, 32);
		const char *t = find(&m, 1, "APIC");
		assert_int_equal(number(t + 4, 4), 44 + 8 * vcpus + 12);
		assert_int_equal(number(t + 36, 4), LAYOUT_LAPIC);
		assert_int_equal(number(t + 40, 4), 0); /* no 8259 */
		for (unsigned i = 0; i < vcpus; i++) {
			const unsigned char lapic[8] = {0, 8, (unsigned char)i, (unsigned char)i, 1};
			assert_memory_equal(t + 44 + 8 * i, lapic, 8);
		}
		assert_memory_equal(t + 44 + 8 * vcpus, "\1\14\0\0\0\0\300\376\0\0\0\0", 12);
		memory_unmap(&m);
	}
}

/* --- a reader of AML, for what is in ours --- */

static size_t length(const unsigned char **at)
{
	const unsigned char *p = *at;
	unsigned more = p[0] >> 6;
	size_t n = more ? p[0] & 0xf : p[0] & 0x3f;
	for (unsigned i = 0; i < more; i++)
		n |= (size_t)p[1 + i] << (4 + 8 * i);
	*at = p + 1 + more;
	return n;
}

static uint64_t integer(const unsigned char **at)
{
	const unsigned char *p = *at;
	unsigned n = p[0] <= 1 ? 0 : p[0] == 0x0a ? 1 : p[0] == 0x0b ? 2 : p[0] == 0x0c ? 4 : 8;
	*at = p + 1 + n;
	return n ? number(p + 1, n) : p[0];
}

struct resources {
	uint32_t memory, size, line;
	uint16_t port;
	bool shared;
};

static void read_resources(const unsigned char *p, const unsigned char *end, struct resources *ret)
{
	*ret = (struct resources){0};
	while (*p != 0x79) {
		assert_true(p < end);
		if (*p == 0x86) {
			assert_int_equal(p[3], 1);
			ret->memory = (uint32_t)number(p + 4, 4);
			ret->size = (uint32_t)number(p + 8, 4);
		} else if (*p == 0x89) {
			assert_int_equal(p[3] & ~8, 3); /* consumer, edge, active high */
			assert_int_equal(p[4], 1);
			ret->shared = p[3] & 8;
			ret->line = (uint32_t)number(p + 5, 4);
		} else {
			assert_int_equal(*p, 0x47);
			ret->port = (uint16_t)number(p + 2, 2);
			assert_int_equal(p[7], 8);
			p += 8;
			continue;
		}
		p += 3 + number(p + 1, 2);
	}
	assert_ptr_equal(p + 2, end);
}

/* Finds Name(name, …) between: at its value. */
static const unsigned char *named(const unsigned char *p, const unsigned char *end, const char *name)
{
	unsigned char what[5] = {0x08};
	memcpy(what + 1, name, 4);
	p = memmem(p, (size_t)(end - p), what, 5);
	assert_non_null(p);
	return p + 5;
}

static void check_device(const unsigned char *p, const unsigned char *end, unsigned i, unsigned devices)
{
	struct resources r;
	const unsigned char *crs = named(p, end, "_CRS");
	assert_int_equal(*crs++, 0x11);
	const unsigned char *crs_end = crs;
	crs_end += length(&crs);
	uint64_t bytes = integer(&crs);
	assert_int_equal(bytes, crs_end - crs);
	read_resources(crs, crs_end, &r);
	const unsigned char *uid = named(p, end, "_UID");
	assert_memory_equal(named(p, end, "_HID"), "\rLNRO0005", 10);
	assert_int_equal(integer(&uid), i);
	assert_int_equal(r.memory, LAYOUT_MMIO + i * LAYOUT_MMIO_STEP);
	assert_int_equal(r.size, LAYOUT_MMIO_STEP);
	assert_int_equal(r.line, LAYOUT_GSI_FIRST + i % LAYOUT_GSI_COUNT);
	unsigned users = 0;
	for (unsigned j = 0; j < devices; j++)
		users += j % LAYOUT_GSI_COUNT == i % LAYOUT_GSI_COUNT;
	assert_int_equal(r.shared, users > 1);
}

static void check_dsdt(unsigned devices)
{
	struct guest_memory m;
	build(&m, 2, devices);
	const char *dsdt = table(&m, number(find(&m, 0, "FACP") + 140, 8), "DSDT");
	const unsigned char *p = (const unsigned char *)dsdt + 36, *end = (const unsigned char *)dsdt + number(dsdt + 4, 4);
	static const unsigned char s5[] = {0x08, '\\', '_', 'S', '5', '_', 0x12, 5, 2, 0x0a, ACPI_S5, 0};
	assert_memory_equal(p, s5, sizeof(s5));
	p += sizeof(s5);
	/* One scope that holds the rest, devices behind each other in it. */
	assert_int_equal(*p++, 0x10);
	const unsigned char *scope = p;
	assert_ptr_equal(scope + length(&p), end);
	assert_memory_equal(p, "\\_SB_", 5);
	p += 5;
	unsigned n = 0;
	while (p < end) {
		assert_memory_equal(p, "\x5b\x82", 2);
		p += 2;
		const unsigned char *next = p;
		next += length(&p);
		assert_true(next <= end);
		if (*p == 'V' && p[1] != 'G')
			check_device(p + 4, next, n++, devices);
		else
			assert_true(memcmp(p, "COM1", 4) == 0 || memcmp(p, "VGEN", 4) == 0 || memcmp(p, "GED0", 4) == 0);
		p = next;
	}
	assert_int_equal(n, devices);
	memory_unmap(&m);
}

static void test_devices(void **state)
{
	check_dsdt(0);
	check_dsdt(5);
	check_dsdt(LAYOUT_GSI_COUNT + 1);
	check_dsdt(LAYOUT_DEVICES_MAX);
}

static void test_own_devices(void **state)
{
	struct guest_memory m;
	build(&m, 1, 1);
	const char *dsdt = table(&m, number(find(&m, 0, "FACP") + 140, 8), "DSDT");
	size_t n = number(dsdt + 4, 4);
	/* PNP0501; the port and its line; the method of the events' device; where the generation's id is. */
	static const char com1[] = "_HID\x0c\x41\xd0\x05\x01", port[] = "\x47\1\xf8\3\xf8\3\1\x08\x89\6\0\3\1\4\0\0\0\x79";
	static const char event[] = "_EVT\x09\xa0\x0c\x93\x68\x0a\x09\x86VGEN\x0a\x80", address[] = "ADDR\x12\x08\2\x0c\0\xf0\x09\0\0";
	assert_non_null(memmem(dsdt, n, com1, sizeof(com1) - 1));
	assert_non_null(memmem(dsdt, n, port, sizeof(port) - 1));
	assert_non_null(memmem(dsdt, n, event, sizeof(event) - 1));
	assert_non_null(memmem(dsdt, n, address, sizeof(address) - 1));
	const unsigned char id[16] = "a generation id";
	acpi_set_generation(&m, id);
	assert_memory_equal(memory_at(&m, 0x9f000, 16), id, 16);
	memory_unmap(&m);
}

static void test_lengths(void **state)
{
	static const size_t sizes[] = {0, 62, 63, 4092, 4093, 4094, 65535};
	static char bytes[65535];
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		cleanup_buf struct buf b = BUF_INIT;
		size_t at = aml_if(&b);
		buf_add(&b, bytes, sizes[i]);
		aml_end(&b, at);
		assert_false(b.failed);
		const unsigned char *p = (const unsigned char *)buf_str(&b).p + 1, *begin = p;
		size_t n = length(&p);
		assert_int_equal(n, buf_len(&b) - 1);
		assert_int_equal((size_t)(p - begin) + sizes[i], n);
	}
}

static void test_integers(void **state)
{
	static const uint64_t values[] = {0, 1, 2, 255, 256, 65535, 65536, UINT32_MAX, 1ull << 32, UINT64_MAX};
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		cleanup_buf struct buf b = BUF_INIT;
		aml_integer(&b, values[i]);
		const unsigned char *p = (const unsigned char *)buf_str(&b).p, *begin = p;
		assert_int_equal(integer(&p), values[i]);
		assert_int_equal(p - begin, buf_len(&b));
	}
}

static void test_limits(void **state)
{
	struct guest_memory m, none = {0};
	struct error err = {0};
	build(&m, 1, 0);
	assert_int_equal(acpi_build(&m, 0, 0, &err), -EINVAL);
	assert_int_equal(acpi_build(&m, ACPI_VCPUS_MAX + 1, 0, &err), -EINVAL);
	assert_int_equal(acpi_build(&m, 1, LAYOUT_DEVICES_MAX + 1, &err), -EINVAL);
	assert_int_equal(acpi_build(&none, 1, 1, &err), -EINVAL);
	memory_unmap(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fadt),
		cmocka_unit_test(test_power),
		cmocka_unit_test(test_madt),
		cmocka_unit_test(test_devices),
		cmocka_unit_test(test_own_devices),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_integers),
		cmocka_unit_test(test_limits),
	};
	return cmocka_run_group_tests_name("vmm acpi", tests, NULL, NULL);
}
