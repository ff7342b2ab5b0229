#include "vmm/aml.h"

static void byte(struct buf *b, unsigned value)
{
	unsigned char c = (unsigned char)value;
	buf_add(b, &c, 1);
}

static void little_endian(struct buf *b, uint64_t value, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		byte(b, (unsigned)(value >> 8 * i) & 0xff);
}

size_t aml_scope(struct buf *b, const char *name)
{
	byte(b, 0x10);
	size_t at = b->end;
	buf_add_c(b, name);
	return at;
}

size_t aml_device(struct buf *b, const char *name)
{
	byte(b, 0x5b);
	byte(b, 0x82);
	size_t at = b->end;
	buf_add_c(b, name);
	return at;
}

size_t aml_method(struct buf *b, const char *name, unsigned arguments)
{
	byte(b, 0x14);
	size_t at = b->end;
	buf_add_c(b, name);
	byte(b, arguments | 1 << 3); /* serialized */
	return at;
}

size_t aml_package(struct buf *b, unsigned elements)
{
	byte(b, 0x12);
	size_t at = b->end;
	byte(b, elements);
	return at;
}

size_t aml_if(struct buf *b)
{
	byte(b, 0xa0);
	return b->end;
}

/* PkgLength (20.2.4) counts itself: one byte to 63, else four bits and more bytes. */
void aml_end(struct buf *b, size_t begin)
{
	if (b->failed)
		return;
	size_t n = b->end - begin;
	unsigned more = n + 1 <= 0x3f ? 0 : n + 2 <= 0xfff ? 1 : 2;
	if (!buf_reserve(b, more + 1))
		return;
	memmove(b->data + begin + more + 1, b->data + begin, n);
	buf_commit(b, more + 1);
	n += more + 1;
	if (!more) {
		b->data[begin] = (char)n;
		return;
	}
	b->data[begin] = (char)(more << 6 | (n & 0xf));
	for (unsigned i = 0; i < more; i++)
		b->data[begin + 1 + i] = (char)(n >> (4 + 8 * i));
}

void aml_name(struct buf *b, const char *name)
{
	byte(b, 0x08);
	buf_add_c(b, name);
}

void aml_integer(struct buf *b, uint64_t value)
{
	if (value <= 1) {
		byte(b, (unsigned)value); /* ZeroOp, OneOp */
	} else if (value <= UINT8_MAX) {
		byte(b, 0x0a);
		little_endian(b, value, 1);
	} else if (value <= UINT16_MAX) {
		byte(b, 0x0b);
		little_endian(b, value, 2);
	} else if (value <= UINT32_MAX) {
		byte(b, 0x0c);
		little_endian(b, value, 4);
	} else {
		byte(b, 0x0e);
		little_endian(b, value, 8);
	}
}

void aml_string(struct buf *b, const char *text)
{
	byte(b, 0x0d);
	buf_add(b, text, strlen(text) + 1);
}

static unsigned hex_digit(char c)
{
	return (unsigned)(c <= '9' ? c - '0' : c - 'A' + 10);
}

/* Three letters of five bits each, four digits; the bytes stand in the order of big-endian numbers (19.3.4). */
void aml_eisa_id(struct buf *b, const char *id)
{
	unsigned letters = (unsigned)(id[0] - '@') << 10 | (unsigned)(id[1] - '@') << 5 | (unsigned)(id[2] - '@');
	byte(b, 0x0c);
	byte(b, letters >> 8);
	byte(b, letters & 0xff);
	byte(b, hex_digit(id[3]) << 4 | hex_digit(id[4]));
	byte(b, hex_digit(id[5]) << 4 | hex_digit(id[6]));
}

void aml_buffer(struct buf *b, struct str bytes)
{
	byte(b, 0x11);
	size_t at = b->end;
	aml_integer(b, bytes.n);
	buf_add_str(b, bytes);
	aml_end(b, at);
}

void aml_notify(struct buf *b, const char *name, uint64_t value)
{
	byte(b, 0x86);
	buf_add_c(b, name);
	aml_integer(b, value);
}

void aml_argument_is(struct buf *b, unsigned argument, uint64_t value)
{
	byte(b, 0x93);
	byte(b, 0x68 + argument);
	aml_integer(b, value);
}

void resource_memory(struct buf *b, uint32_t address, uint32_t size)
{
	byte(b, 0x86); /* 32-bit fixed memory range */
	little_endian(b, 9, 2);
	byte(b, 1); /* writable */
	little_endian(b, address, 4);
	little_endian(b, size, 4);
}

void resource_io(struct buf *b, uint16_t port, uint8_t n)
{
	byte(b, 0x47);
	byte(b, 1); /* decodes 16 bits */
	little_endian(b, port, 2);
	little_endian(b, port, 2);
	byte(b, 1);
	byte(b, n);
}

void resource_interrupt(struct buf *b, uint32_t line, bool shared)
{
	byte(b, 0x89); /* extended interrupt */
	little_endian(b, 6, 2);
	byte(b, 1u << 0 | 1u << 1 | (shared ? 1u << 3 : 0)); /* consumer, edge */
	byte(b, 1);
	little_endian(b, line, 4);
}

void resource_end(struct buf *b)
{
	byte(b, 0x79);
	byte(b, 0); /* no checksum */
}
