#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "vmm/serial.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

enum { DATA, IER, IIR, LCR, MCR, LSR, MSR, SCR };

struct world {
	struct serial *serial;
	int log, irq; /* ours */
};

static void begin_with(struct world *w, int log)
{
	struct error err = {0};
	*w = (struct world){.log = log, .irq = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	assert_true(w->log >= 0 && w->irq >= 0);
	w->serial = serial_new(dup(w->log), dup(w->irq), &err);
	assert_non_null(w->serial);
}

static void begin(struct world *w)
{
	begin_with(w, memfd_create("log", MFD_CLOEXEC));
}

static void end(struct world *w)
{
	serial_free(w->serial);
	close(w->log);
	close(w->irq);
}

static void say(struct world *w, const char *text)
{
	for (; *text; text++)
		serial_write(w->serial, DATA, (uint8_t)*text);
}

static void check_log(struct world *w, const char *text)
{
	char there[8192];
	ssize_t n = pread(w->log, there, sizeof(there), 0);
	assert_true(n >= 0);
	assert_str(str_n(there, (size_t)n), text);
}

/* Interrupts since it was asked last. */
static uint64_t interrupts(struct world *w)
{
	uint64_t n;
	return read(w->irq, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

static void test_lines(void **state)
{
	struct world w;
	begin(&w);
	say(&w, "one\r\ntw");
	check_log(&w, "one\r\n");
	say(&w, "o\n");
	check_log(&w, "one\r\ntwo\n");
	say(&w, "login: ");
	check_log(&w, "one\r\ntwo\n");
	serial_flush(w.serial);
	check_log(&w, "one\r\ntwo\nlogin: ");
	serial_flush(w.serial);
	say(&w, "x");
	serial_free(w.serial);
	w.serial = NULL;
	check_log(&w, "one\r\ntwo\nlogin: x");
	end(&w);
}

static void test_long_line(void **state)
{
	struct world w;
	begin(&w);
	for (unsigned i = 0; i < 5000; i++)
		say(&w, "a");
	assert_int_equal(lseek(w.log, 0, SEEK_END), 4096);
	end(&w);
}

static void test_what_linux_probes(void **state)
{
	struct world w;
	begin(&w);
	struct serial *s = w.serial;
	/* 8250_port.c, autoconfig(): IER keeps four bits; looped back, RTS and OUT2 come back as CTS and DCD; FIFOs make it a 16550A. */
	serial_write(s, IER, 0xff);
	assert_int_equal(serial_read(s, IER), 0x0f);
	serial_write(s, IER, 0);
	assert_int_equal(serial_read(s, IER), 0);
	serial_write(s, MCR, 0x1a);
	assert_int_equal(serial_read(s, MSR), 0x90);
	serial_write(s, MCR, 0x15);
	assert_int_equal(serial_read(s, MSR), 0x60);
	say(&w, "looped back\n");
	check_log(&w, "");
	serial_write(s, MCR, 0x0b);
	assert_int_equal(serial_read(s, MCR), 0x0b);
	assert_int_equal(serial_read(s, MSR), 0xb0);
	assert_int_equal(serial_read(s, IIR) & 0xc0, 0);
	serial_write(s, IIR, 0x01);
	assert_int_equal(serial_read(s, IIR), 0xc1);
	/* No 64 bytes, and no enhanced features. */
	serial_write(s, IIR, 0x21);
	assert_int_equal(serial_read(s, IIR) & 0xe0, 0xc0);
	serial_write(s, LCR, 0xbf);
	assert_int_equal(serial_read(s, IIR), 0xc1);
	/* The divisor is behind DLAB. */
	serial_write(s, DATA, 0x01);
	serial_write(s, IER, 0x02);
	assert_int_equal(serial_read(s, DATA), 0x01);
	assert_int_equal(serial_read(s, IER), 0x02);
	serial_write(s, LCR, 0x03);
	assert_int_equal(serial_read(s, LCR), 0x03);
	assert_int_equal(serial_read(s, DATA), 0);
	assert_int_equal(serial_read(s, IER), 0);
	serial_write(s, SCR, 0xa5);
	assert_int_equal(serial_read(s, SCR), 0xa5);
	/* Ready, and nothing comes in. */
	assert_int_equal(serial_read(s, LSR), 0x60);
	serial_write(s, LSR, 0xff);
	serial_write(s, MSR, 0xff);
	assert_int_equal(serial_read(s, LSR), 0x60);
	assert_int_equal(serial_read(s, MSR), 0xb0);
	/* There are no more. */
	assert_int_equal(serial_read(s, 8), 0xff);
	serial_write(s, 8, 1);
	check_log(&w, "");
	end(&w);
}

static void test_interrupts(void **state)
{
	struct world w;
	begin(&w);
	say(&w, "a");
	assert_int_equal(interrupts(&w), 0);
	assert_int_equal(serial_read(w.serial, IIR), 0x01);
	/* Enabled, it comes at once, until IIR is read. */
	serial_write(w.serial, IER, 0x02);
	assert_int_equal(interrupts(&w), 1);
	serial_write(w.serial, IER, 0x03);
	assert_int_equal(interrupts(&w), 0);
	assert_int_equal(serial_read(w.serial, IIR), 0x02);
	assert_int_equal(serial_read(w.serial, IIR), 0x01);
	say(&w, "b");
	assert_int_equal(interrupts(&w), 1);
	assert_int_equal(serial_read(w.serial, IIR), 0x02);
	/* Linux' test whether it comes again when enabled again. */
	serial_write(w.serial, IER, 0);
	serial_write(w.serial, IER, 0x02);
	assert_int_equal(interrupts(&w), 1);
	assert_int_equal(serial_read(w.serial, IIR), 0x02);
	end(&w);
}

static void test_panic(void **state)
{
	struct world w;
	begin(&w);
	say(&w, "Kernel panic - not sync\nKernel panic - not syncin\nKernelKernel panic");
	assert_false(serial_panicked(w.serial));
	serial_flush(w.serial);
	say(&w, " - not syncin");
	assert_false(serial_panicked(w.serial));
	say(&w, "g: Attempted to kill init!\n");
	assert_true(serial_panicked(w.serial));
	say(&w, "more\n");
	assert_true(serial_panicked(w.serial));
	end(&w);
}

static void test_bounded(void **state)
{
	struct world w;
	char line[32];
	begin(&w);
	for (unsigned i = 0; i < 40000; i++) {
		snprintf(line, sizeof(line), "line %u\n", i);
		say(&w, line);
		if (i % 1000 == 0)
			assert_true(lseek(w.log, 0, SEEK_END) <= SERIAL_LOG_MAX);
	}
	/* The newest ones in order, from a whole line on, and not less than about half. */
	static char there[SERIAL_LOG_MAX + 1];
	ssize_t n = pread(w.log, there, sizeof(there) - 1, 0);
	assert_true(n >= SERIAL_LOG_MAX / 2 - 32 && n <= SERIAL_LOG_MAX);
	struct str rest = str_n(there, (size_t)n), head;
	uint64_t first = 0, i = 0;
	while (str_cut(rest, '\n', &head, &rest)) {
		uint64_t number;
		assert_true(str_starts(head, STR("line ")));
		assert_int_equal(str_to_u64(str_from(head, 5), &number), 0);
		if (i++ == 0)
			first = number;
		assert_int_equal(number, first + i - 1);
	}
	assert_int_equal(first + i, 40000);
	end(&w);
}

static void test_log_that_was_there(void **state)
{
	struct world w;
	int fd = memfd_create("log", MFD_CLOEXEC);
	assert_int_equal(fd_write_all(fd, "before\n", 7), 0);
	assert_int_equal(fcntl(fd, F_SETFL, O_APPEND), 0);
	begin_with(&w, fd);
	say(&w, "after\n");
	check_log(&w, "before\nafter\n");
	end(&w);

	/* One that is longer than it may be is cut when it goes on. */
	fd = memfd_create("log", MFD_CLOEXEC);
	assert_int_equal(ftruncate(fd, 3 * SERIAL_LOG_MAX), 0);
	begin_with(&w, fd);
	say(&w, "after\n");
	assert_int_equal(lseek(w.log, 0, SEEK_END), SERIAL_LOG_MAX / 2 + 6);
	end(&w);
}

static void test_other_logs(void **state)
{
	struct world w;
	struct error err = {0};
	int ends[2];
	char there[8];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	begin_with(&w, ends[1]);
	say(&w, "hello\n");
	assert_int_equal(read(ends[0], there, sizeof(there)), 6);
	assert_memory_equal(there, "hello\n", 6);
	end(&w);
	close(ends[0]);
	/* None at all, and no interrupt. */
	struct serial *s = serial_new(-1, -1, &err);
	assert_non_null(s);
	serial_write(s, IER, 2);
	serial_write(s, DATA, '\n');
	serial_free(s);
	/* One that cannot be read begins anew. */
	begin_with(&w, open("/tmp", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
	for (unsigned i = 0; i < SERIAL_LOG_MAX / 8; i++)
		say(&w, "1234567\n");
	assert_int_equal(lseek(w.log, 0, SEEK_END), SERIAL_LOG_MAX);
	say(&w, "new\n");
	assert_int_equal(lseek(w.log, 0, SEEK_END), 4);
	end(&w);
	serial_free(NULL);
}

static void test_saved(void **state)
{
	struct world w, other;
	cleanup_buf struct buf saved = BUF_INIT, again = BUF_INIT;
	begin(&w);
	serial_write(w.serial, LCR, 0x80);
	serial_write(w.serial, DATA, 3);
	serial_write(w.serial, IER, 4);
	serial_write(w.serial, LCR, 0x13);
	serial_write(w.serial, MCR, 0x0b);
	serial_write(w.serial, SCR, 0x77);
	serial_write(w.serial, IIR, 1);
	serial_write(w.serial, IER, 2);
	serial_save(w.serial, &saved);
	begin(&other);
	assert_int_equal(serial_load(other.serial, buf_str(&saved)), 0);
	serial_save(other.serial, &again);
	assert_true(str_eq(buf_str(&saved), buf_str(&again)));
	/* The interrupt that nobody has read. */
	assert_int_equal(interrupts(&other), 1);
	assert_int_equal(serial_read(other.serial, IIR), 0xc2);
	assert_int_equal(serial_read(other.serial, LCR), 0x13);
	/* Of other lengths, or with bits that there are not. */
	for (size_t n = 0; n < buf_len(&saved); n++)
		assert_int_equal(serial_load(other.serial, str_n(buf_str(&saved).p, n)), -EINVAL);
	for (size_t i = 0; i < buf_len(&saved); i++) {
		if (i == 2 || (i >= 4 && i <= 6))
			continue; /* any byte */
		char *at = saved.data + saved.start + i, was = *at;
		*at = (char)0xff;
		assert_int_equal(serial_load(other.serial, buf_str(&saved)), -EINVAL);
		*at = was;
	}
	end(&other);
	end(&w);
}

static void *write_lines(void *arg)
{
	for (unsigned i = 0; i < 2000; i++) {
		serial_write(arg, DATA, i % 40 == 39 ? '\n' : 'x');
		serial_read(arg, IIR);
	}
	return NULL;
}

static void test_two_processors(void **state)
{
	struct world w;
	pthread_t threads[2];
	begin(&w);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_lines, w.serial), 0);
	for (size_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	serial_flush(w.serial);
	assert_int_equal(lseek(w.log, 0, SEEK_END), 4000);
	end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lines),
		cmocka_unit_test(test_long_line),
		cmocka_unit_test(test_what_linux_probes),
		cmocka_unit_test(test_interrupts),
		cmocka_unit_test(test_panic),
		cmocka_unit_test(test_bounded),
		cmocka_unit_test(test_log_that_was_there),
		cmocka_unit_test(test_other_logs),
		cmocka_unit_test(test_saved),
		cmocka_unit_test(test_two_processors),
	};
	return cmocka_run_group_tests_name("vmm serial", tests, NULL, NULL);
}
