/* Where things are in a guest: addresses, ports, interrupt lines. ACPI (acpi.h) tells the guest of them; a saved state relies on them. */
#ifndef CUBICLE_VMM_LAYOUT_H
#define CUBICLE_VMM_LAYOUT_H

#define LAYOUT_LOW_MEMORY_END 0xc0000000ull  /* RAM from 0 to here */
#define LAYOUT_HIGH_MEMORY 0x100000000ull    /* and from here on */
#define LAYOUT_MMIO 0xd0000000ull            /* virtio-mmio: device i at LAYOUT_MMIO + i * LAYOUT_MMIO_STEP */
#define LAYOUT_MMIO_STEP 0x1000ull
#define LAYOUT_IOAPIC 0xfec00000ull
#define LAYOUT_LAPIC 0xfee00000ull
#define LAYOUT_TSS 0xfffbd000ull             /* three pages that KVM wants on Intel */
#define LAYOUT_IDENTITY_MAP 0xfffbc000ull

enum {
	LAYOUT_DEVICES_MAX = 32,
	LAYOUT_GSI_SERIAL = 4,
	LAYOUT_GSI_EVENTS = 9,    /* ACPI's generic event device */
	LAYOUT_GSI_FIRST = 10,    /* virtio device i has LAYOUT_GSI_FIRST + i % LAYOUT_GSI_COUNT: lines may be shared */
	LAYOUT_GSI_COUNT = 14,    /* 10 to 23 */
	LAYOUT_GSI_END = LAYOUT_GSI_FIRST + LAYOUT_GSI_COUNT,
	LAYOUT_PORT_SERIAL = 0x3f8,
	LAYOUT_PORT_POWER = 0x600, /* ACPI sleep control and status, reset: see acpi.h */
};

/* How large a machine may be. */
enum {
	MACHINE_VCPUS_MAX = 64,
	MACHINE_MEMORY_MIN_MB = 64,
	MACHINE_MEMORY_MAX_MB = 1 << 20,
};

/* vsock */
enum {
	VSOCK_HOST = 2,
	VSOCK_GUEST = 3,        /* of every guest: each monitor has one of its own */
	VSOCK_PORT_CONTROL = 1, /* guest side, SEQPACKET: PID 1 speaks io/messages.h with node. Host side: the guest connects to it once (STREAM) when it listens: "up" */
	VSOCK_PORT_ENVD = 49983, /* guest side, STREAM: PID 1 itself serves envd there, as on the TCP port of that number */
	VSOCK_PORT_OPEN = 2,    /* guest side, STREAM: two bytes of a TCP port (little-endian), then one byte answers: 0 connected, else an errno; then the connection's bytes */
};

#endif
