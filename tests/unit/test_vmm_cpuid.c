#include "unit.h"

#include "base/cleanup.h"
#include "vmm/cpuid.h"

#include <errno.h>

#define BIT(n) (UINT32_C(1) << (n))

enum { INDEX = KVM_CPUID_FLAG_SIGNIFCANT_INDEX };

/* What KVM says on an Intel. */
static void intel(struct cpuid *c)
{
	static const struct kvm_cpuid_entry2 entries[] = {
		{.function = 0, .eax = 0x1f, .ebx = 0x756e6547, .ecx = 0x6c65746e, .edx = 0x49656e69},
		{.function = 1, .eax = 0x000806f8, .ebx = 0x07100800, .ecx = BIT(5) | BIT(3) | BIT(0) | BIT(26), .edx = BIT(0) | BIT(9)},
		{.function = 4, .index = 0, .flags = INDEX, .eax = 0xfc004121},
		{.function = 4, .index = 3, .flags = INDEX, .eax = 0xfc1fc163},
		{.function = 4, .index = 4, .flags = INDEX, .eax = 0},
		{.function = 7, .index = 0, .flags = INDEX, .ebx = BIT(2) | BIT(5) | BIT(7)},
		{.function = 0xa, .eax = 0x08300805},
		{.function = 0xb, .index = 0, .flags = INDEX, .eax = 1, .ebx = 2, .ecx = 0x100, .edx = 99},
		{.function = 0xb, .index = 1, .flags = INDEX, .eax = 7, .ebx = 48, .ecx = 0x201, .edx = 99},
		{.function = 0xd, .index = 0, .flags = INDEX, .eax = 7},
		{.function = 0x12, .index = 0, .flags = INDEX, .eax = 3},
		{.function = 0x1f, .index = 0, .flags = INDEX, .eax = 1, .ebx = 2, .ecx = 0x100},
		{.function = 0x40000000, .eax = 0x40000001, .ebx = 0x4b4d564b, .ecx = 0x564b4d56, .edx = 0x4d},
		{.function = 0x40000001, .eax = 0x01007efb},
		{.function = 0x80000008, .eax = 0x3030},
	};
	*c = (struct cpuid){.n = ARRAY_SIZE(entries)};
	memcpy(c->entry, entries, sizeof(entries));
}

static void amd(struct cpuid *c)
{
	static const struct kvm_cpuid_entry2 entries[] = {
		{.function = 0, .eax = 0x10, .ebx = 0x68747541, .ecx = 0x444d4163, .edx = 0x69746e65},
		{.function = 1, .eax = 0x00a20f12, .ebx = 0, .ecx = 0, .edx = 1},
		{.function = 0x80000001, .ecx = BIT(2) | BIT(22) | BIT(23), .edx = BIT(29)},
		{.function = 0x80000008, .eax = 0x3030, .ecx = 0x703f},
		{.function = 0x8000000a, .eax = 1},
		{.function = 0x8000001d, .index = 0, .flags = INDEX, .eax = 0x4121},
		{.function = 0x8000001d, .index = 3, .flags = INDEX, .eax = 0x3c163},
		{.function = 0x8000001e, .eax = 9, .ebx = 0x104, .ecx = 0x300},
		{.function = 0x80000022, .eax = 1},
	};
	*c = (struct cpuid){.n = ARRAY_SIZE(entries)};
	memcpy(c->entry, entries, sizeof(entries));
}

static void test_features(void **state)
{
	struct cpuid c;
	intel(&c);
	cpuid_adjust(&c, 1, true);
	const struct kvm_cpuid_entry2 *e = cpuid_find(&c, 1, 0);
	assert_int_equal(e->ecx, BIT(31) | BIT(24) | BIT(21) | BIT(0) | BIT(26));
	assert_int_equal(e->ebx, 0x00010800);
	assert_int_equal(e->edx & BIT(28), 0);
	assert_int_equal(cpuid_find(&c, 7, 0)->ebx, BIT(5) | BIT(7));
	assert_int_equal(cpuid_find(&c, 0xa, 0)->eax, 0);
	assert_null(cpuid_find(&c, 0x12, 0));
	/* KVM's own leaves are as they were. */
	assert_int_equal(cpuid_find(&c, 0x40000000, 0)->ebx, 0x4b4d564b);
	assert_int_equal(cpuid_find(&c, 0x40000001, 0)->eax, 0x01007efb);

	intel(&c);
	cpuid_adjust(&c, 2, false);
	assert_int_equal(cpuid_find(&c, 1, 0)->ecx & BIT(24), 0);
	assert_int_equal(cpuid_find(&c, 1, 0)->edx & BIT(28), BIT(28));

	amd(&c);
	cpuid_adjust(&c, 1, true);
	assert_int_equal(cpuid_find(&c, 0x80000001, 0)->ecx, BIT(22)); /* neither virtual machines within, nor counters */
	assert_null(cpuid_find(&c, 0x8000000a, 0));
	assert_null(cpuid_find(&c, 0x80000022, 0));
}

static void test_topology(void **state)
{
	struct cpuid c;
	intel(&c);
	cpuid_adjust(&c, 6, true);
	assert_null(cpuid_find(&c, 0x1f, 0));
	assert_int_equal(cpuid_find(&c, 0xb, 0)->eax, 0);
	assert_int_equal(cpuid_find(&c, 0xb, 0)->ebx, 1);
	assert_int_equal(cpuid_find(&c, 0xb, 1)->eax, 3);
	assert_int_equal(cpuid_find(&c, 0xb, 1)->ebx, 6);
	assert_int_equal(cpuid_find(&c, 0xb, 1)->ecx, 0x201);
	assert_int_equal(cpuid_find(&c, 4, 0)->eax, 0x1c000121); /* seven more cores have ids, none shares it */
	assert_int_equal(cpuid_find(&c, 4, 3)->eax, 0x1c014163); /* all six do */
	assert_int_equal(cpuid_find(&c, 4, 4)->eax, 0);
	assert_int_equal(cpuid_find(&c, 0x80000008, 0)->ecx, 0);

	amd(&c);
	cpuid_adjust(&c, 6, true);
	assert_int_equal(cpuid_find(&c, 0x80000008, 0)->ecx, 0x3005);
	assert_int_equal(cpuid_find(&c, 0x8000001d, 0)->eax, 0x121);
	assert_int_equal(cpuid_find(&c, 0x8000001d, 3)->eax, 0x14163);
}

static void test_numbers(void **state)
{
	struct cpuid c;
	intel(&c);
	cpuid_adjust(&c, 6, true);
	for (uint32_t id = 0; id < 6; id++) {
		cpuid_number(&c, id);
		assert_int_equal(cpuid_find(&c, 1, 0)->ebx, id << 24 | 0x00060800);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(cpuid_find(&c, 0xb, i)->edx, id);
	}
	amd(&c);
	cpuid_adjust(&c, 6, true);
	cpuid_number(&c, 5);
	assert_int_equal(cpuid_find(&c, 0x8000001e, 0)->eax, 5);
	assert_int_equal(cpuid_find(&c, 0x8000001e, 0)->ebx, 5);
	assert_int_equal(cpuid_find(&c, 0x8000001e, 0)->ecx, 0);
}

static void test_restored(void **state)
{
	struct cpuid here, given;
	struct error err = {0};
	intel(&here);
	intel(&given);
	cpuid_adjust(&here, 2, true);
	cpuid_adjust(&given, 2, true);
	assert_int_equal(cpuid_check(&here, &given, &err), 0);
	/* More than it had: nothing to it. Less: it may be using that. */
	cpuid_find(&here, 7, 0)->ebx |= BIT(16);
	assert_int_equal(cpuid_check(&here, &given, &err), 0);
	cpuid_find(&here, 7, 0)->ebx &= ~BIT(5);
	assert_int_equal(cpuid_check(&here, &given, &err), -EXDEV);
	assert_non_null(strstr(err.message, "CPUID 0x7.0 ebx 0x20"));
	cpuid_find(&here, 7, 0)->ebx |= BIT(5);
	cpuid_find(&here, 1, 0)->eax++;
	assert_int_equal(cpuid_check(&here, &given, &err), -EXDEV);
	assert_non_null(strstr(err.message, "GenuineIntel family 6 model 143 stepping 8"));
	assert_non_null(strstr(err.message, "stepping 9"));
	amd(&here);
	assert_int_equal(cpuid_check(&here, &given, &err), -EXDEV);
	assert_non_null(strstr(err.message, "AuthenticAMD family 25 model 33"));
	given = (struct cpuid){0};
	assert_int_equal(cpuid_check(&here, &given, &err), -EXDEV);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_features),
		cmocka_unit_test(test_topology),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_restored),
	};
	return cmocka_run_group_tests_name("vmm cpuid", tests, NULL, NULL);
}
