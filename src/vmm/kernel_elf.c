#include "base/cleanup.h"
#include "vmm/kernel_impl.h"

#include <elf.h>

enum {
	SEGMENTS_MAX = 64,
	NOTES_MAX = 65536, /* bytes of a segment of notes */
	NOTE_PHYS32_ENTRY = 18, /* XEN_ELFNOTE_PHYS32_ENTRY (xen/include/public/elfnote.h) */
};

static bool inside_segments(const Elf64_Phdr p[], unsigned n, uint64_t address)
{
	for (unsigned i = 0; i < n; i++)
		if (p[i].p_type == PT_LOAD && address >= p[i].p_paddr && address - p[i].p_paddr < p[i].p_memsz)
			return true;
	return false;
}

static uint64_t align(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

/* Takes the next note of the view. False at its end, or when what is there is none. */
static bool next_note(struct str *rest, uint64_t to, uint32_t *ret_type, struct str *ret_name, struct str *ret_value)
{
	Elf64_Nhdr h;
	if (rest->n < sizeof(h))
		return false;
	memcpy(&h, rest->p, sizeof(h));
	uint64_t value = align(sizeof(h) + (uint64_t)h.n_namesz, to), end = value + h.n_descsz;
	if (end > rest->n)
		return false;
	*ret_type = h.n_type;
	*ret_name = str_n(rest->p + sizeof(h), h.n_namesz);
	*ret_value = str_n(rest->p + value, h.n_descsz);
	*rest = str_from(*rest, align(end, to));
	return true;
}

/* 1 with the entry, 0 when there is no note of it, or -errno. */
static int find_pvh(const struct kernel_image *k, const Elf64_Phdr *p, uint32_t *ret, struct error *err)
{
	struct str name, value;
	uint32_t type;
	if (p->p_filesz == 0)
		return 0;
	if (p->p_filesz > NOTES_MAX)
		return error_set(err, -EINVAL, 500, "its notes are too long");
	cleanup_free char *notes = malloc(p->p_filesz);
	if (!notes)
		return error_set(err, -ENOMEM, 500, "no memory");
	int r = kernel_read(k, p->p_offset, notes, p->p_filesz, err);
	if (r < 0)
		return r;
	struct str rest = str_n(notes, p->p_filesz);
	while (next_note(&rest, p->p_align == 8 ? 8 : 4, &type, &name, &value)) {
		if (type != NOTE_PHYS32_ENTRY || !str_eq(name, str_n("Xen", 4)) || value.n < sizeof(*ret))
			continue;
		/* 8 bytes in kernels for 64 bits; the upper ones are 0. */
		memcpy(ret, value.p, sizeof(*ret));
		return 1;
	}
	return 0;
}

static int load_segments(struct kernel_image *k, const Elf64_Phdr p[], unsigned n, struct error *err)
{
	for (unsigned i = 0; i < n; i++) {
		if (p[i].p_type != PT_LOAD || p[i].p_memsz == 0)
			continue;
		if (p[i].p_filesz > p[i].p_memsz)
			return error_set(err, -EINVAL, 500, "a segment is smaller than its contents");
		/* New memory is zeros: what the file does not fill is right. */
		int r = kernel_place(k, p[i].p_offset, p[i].p_filesz, p[i].p_paddr, p[i].p_memsz, err);
		if (r < 0)
			return r;
		k->end = MAX(k->end, p[i].p_paddr + p[i].p_memsz);
	}
	return 0;
}

/* What a bzImage would bring along. */
static void make_header(struct setup_header *h)
{
	h->boot_flag = 0xaa55;
	h->header = 0x53726448; /* "HdrS" */
	h->version = 0x020f;
	h->loadflags = LOADED_HIGH;
	h->kernel_alignment = 16 << 20;
	h->xloadflags = XLF_KERNEL_64;
	h->cmdline_size = KERNEL_COMMAND_LINE_MAX;
}

int kernel_elf(struct kernel_image *k, struct error *err)
{
	Elf64_Ehdr e;
	Elf64_Phdr p[SEGMENTS_MAX];
	uint32_t pvh = 0;
	int r = kernel_read(k, 0, &e, sizeof(e), err);
	if (r < 0)
		return r;
	if (e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_ident[EI_DATA] != ELFDATA2LSB || e.e_machine != EM_X86_64 || e.e_type != ET_EXEC)
		return error_set(err, -EINVAL, 500, "it is an ELF file, but no vmlinux for x86-64");
	if (e.e_phentsize != sizeof(p[0]) || e.e_phnum == 0 || e.e_phnum > SEGMENTS_MAX)
		return error_set(err, -EINVAL, 500, "it has no segments, or too many");
	r = kernel_read(k, e.e_phoff, p, e.e_phnum * sizeof(p[0]), err);
	if (r < 0)
		return r;
	r = load_segments(k, p, e.e_phnum, err);
	for (unsigned i = 0; r == 0 && i < e.e_phnum; i++)
		if (p[i].p_type == PT_NOTE)
			r = find_pvh(k, &p[i], &pvh, err);
	if (r < 0)
		return r;
	k->mode = r > 0 ? KERNEL_PVH : KERNEL_LONG;
	k->entry = r > 0 ? pvh : e.e_entry;
	if (!inside_segments(p, e.e_phnum, k->entry))
		return error_set(err, -EINVAL, 500, "its entry is outside of its segments");
	k->initramfs_end = UINT32_MAX;
	k->command_line_max = KERNEL_COMMAND_LINE_MAX;
	make_header(&k->parameters.hdr);
	return 0;
}
