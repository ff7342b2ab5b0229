#include "fuzz.h"

#include "vmm/state_file.h"

/* A saved state's file: what is found in it lies in it. The input is what comes behind the header, so that the checksum is no obstacle; as it is, it is a file, too. */
void fuzz_one(struct str input)
{
	struct error err = {0};
	uint64_t memory, number;
	struct str block;
	cleanup_buf struct buf b = BUF_INIT;
	if (state_check(input, &memory, &err) < 0)
		hold(err.message[0]);
	state_begin(&b);
	buf_add_str(&b, input);
	hold(state_seal(&b, 4096) == 0);
	hold(state_check(buf_str(&b), &memory, &err) == 0 && memory == 4096);
	for (uint32_t kind = 0; kind < 40; kind++)
		for (uint32_t index = 0; index < 3; index++) {
			if (state_find(buf_str(&b), (enum state_kind)kind, index, &block, &err) < 0)
				continue;
			hold(inside(buf_str(&b), block));
			while (state_take(&block, 8, &number))
				hold(inside(buf_str(&b), block));
		}
}
