/* Writes ACPI machine language (ACPI 6.3, 20.2): as much of it as acpi.c needs. Appends to a buffer, whose `failed` says when memory ran out. */
#ifndef CUBICLE_VMM_AML_H
#define CUBICLE_VMM_AML_H

#include "base/buf.h"

/* Things with a length: what is between begin and aml_end() lies inside. Names are of four characters; a leading backslash stands for the root. Each returns what aml_end() wants. */
size_t aml_scope(struct buf *b, const char *name);
size_t aml_device(struct buf *b, const char *name);
size_t aml_method(struct buf *b, const char *name, unsigned arguments);
size_t aml_package(struct buf *b, unsigned elements);
size_t aml_if(struct buf *b);
void aml_end(struct buf *b, size_t begin);

/* Name(name, …): the value follows. */
void aml_name(struct buf *b, const char *name);

void aml_integer(struct buf *b, uint64_t value);
void aml_string(struct buf *b, const char *text);
/* EISAID("PNP0501"). */
void aml_eisa_id(struct buf *b, const char *id);
/* Buffer of these bytes. */
void aml_buffer(struct buf *b, struct str bytes);

/* Notify(name, value); argument == value. */
void aml_notify(struct buf *b, const char *name, uint64_t value);
void aml_argument_is(struct buf *b, unsigned argument, uint64_t value);

/* Resource descriptors (6.4), to be put into a buffer of their own, which resource_end() ends. */
void resource_memory(struct buf *b, uint32_t address, uint32_t size);
void resource_io(struct buf *b, uint16_t port, uint8_t n);
/* Edge-triggered, active high. */
void resource_interrupt(struct buf *b, uint32_t line, bool shared);
void resource_end(struct buf *b);

#endif
