#include "vmm/serial.h"
#include "base/fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* Registers and bits: National Semiconductor PC16550D, 8. The names are those of its tables. */
enum { DATA, IER, IIR_FCR, LCR, MCR, LSR, MSR, SCR };
enum {
	IER_THRE = 0x02,
	IER_ALL = 0x0f,
	IIR_NONE = 0x01,
	IIR_THRE = 0x02,
	IIR_FIFOS = 0xc0,
	FCR_ENABLE = 0x01,
	LCR_DLAB = 0x80,
	MCR_ALL = 0x1f,
	MCR_LOOP = 0x10,
	LSR_EMPTY = 0x60, /* THRE and TEMT: what is written is gone at once */
	MSR_READY = 0xb0, /* CTS, DSR, DCD */
};

enum { LINE = 4096, STATE_VERSION = 1, STATE = 10 };

static const char panic_text[] = "Kernel panic - not syncing";

struct serial {
	pthread_mutex_t lock;
	int log, irq;
	bool regular;      /* the log is bounded */
	uint64_t size;     /* bytes in the log */
	atomic_bool panicked;
	size_t panic_seen; /* bytes of panic_text that were the last ones */
	unsigned char ier, lcr, mcr, scr, divisor[2];
	bool fifos;
	bool thre;         /* the transmitter has become empty, and the guest has not read that */
	size_t n;          /* in `line` */
	char line[LINE];
	char half[SERIAL_LOG_MAX / 2]; /* for log_halve(): a processor's thread allocates nothing, the allocator asks the kernel what its filter forbids */
};

/* --- the log --- */

static int log_open(struct serial *s, struct error *err)
{
	struct stat st;
	if (s->log < 0)
		return 0;
	if (fstat(s->log, &st) < 0)
		return error_errno(err, -errno, "the console's log");
	s->regular = S_ISREG(st.st_mode);
	s->size = s->regular ? (uint64_t)st.st_size : 0;
	/* pwrite() would append, too. */
	int flags = fcntl(s->log, F_GETFL);
	if (s->regular && flags >= 0 && (flags & O_APPEND) && fcntl(s->log, F_SETFL, flags & ~O_APPEND) < 0)
		return error_errno(err, -errno, "the console's log");
	return 0;
}

static ssize_t write_at(int fd, const char *p, size_t n, uint64_t offset)
{
	size_t done = 0;
	while (done < n) {
		ssize_t r = pwrite(fd, p + done, n - done, (off_t)(offset + done));
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			break;
		done += (size_t)r;
	}
	return (ssize_t)done;
}

/* Keeps the newest half, from the beginning of a line on. When that cannot be, nothing. */
static void log_halve(struct serial *s)
{
	uint64_t from = s->size > sizeof(s->half) ? s->size - sizeof(s->half) : 0;
	ssize_t n = pread(s->log, s->half, sizeof(s->half), (off_t)from);
	const char *at = s->half, *end = n > 0 ? memchr(at, '\n', (size_t)n) : NULL;
	if (end && end - at + 1 < n) {
		n -= end - at + 1;
		at = end + 1;
	}
	s->size = n > 0 ? (uint64_t)write_at(s->log, at, (size_t)n, 0) : 0;
	if (ftruncate(s->log, (off_t)s->size) < 0)
		s->size = 0; /* begins again over what is there, which is no longer than it was */
}

/* A log that cannot be written (a full disk) is no reason to stop a guest. */
static void write_out(struct serial *s)
{
	size_t n = s->n;
	s->n = 0;
	if (s->log < 0 || n == 0)
		return;
	if (!s->regular) {
		fd_write_all(s->log, s->line, n);
		return;
	}
	if (s->size + n > SERIAL_LOG_MAX)
		log_halve(s);
	s->size += (uint64_t)write_at(s->log, s->line, n, s->size);
}

static void put(struct serial *s, char c)
{
	/* Its first letter occurs in it only once: what does not go on with it can only begin it. */
	s->panic_seen = c == panic_text[s->panic_seen] ? s->panic_seen + 1 : c == panic_text[0];
	if (s->panic_seen == sizeof(panic_text) - 1) {
		s->panic_seen = 0;
		s->panicked = true;
	}
	s->line[s->n++] = c;
	if (c == '\n' || s->n == LINE)
		write_out(s);
}

/* --- the registers --- */

static void interrupt(struct serial *s)
{
	if (s->irq >= 0 && s->thre && (s->ier & IER_THRE)) {
		uint64_t one = 1;
		/* Full means that it has been told already. */
		while (write(s->irq, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
}

static uint8_t read_register(struct serial *s, unsigned reg)
{
	bool divisor = s->lcr & LCR_DLAB;
	switch (reg) {
	case DATA:
		return divisor ? s->divisor[0] : 0;
	case IER:
		return divisor ? s->divisor[1] : s->ier;
	case IIR_FCR: {
		bool thre = s->thre && (s->ier & IER_THRE);
		if (thre)
			s->thre = false;
		return (uint8_t)((s->fifos ? IIR_FIFOS : 0) | (thre ? IIR_THRE : IIR_NONE));
	}
	case LCR:
		return s->lcr;
	case MCR:
		return s->mcr;
	case LSR:
		return LSR_EMPTY;
	case MSR:
		/* Looped back: DTR is DSR, RTS is CTS, OUT1 is RI, OUT2 is DCD. */
		if (s->mcr & MCR_LOOP)
			return (uint8_t)((s->mcr & 0x0c) << 4 | (s->mcr & 0x02) << 3 | (s->mcr & 0x01) << 5);
		return MSR_READY;
	case SCR:
		return s->scr;
	default:
		return 0xff;
	}
}

static void write_register(struct serial *s, unsigned reg, uint8_t value)
{
	bool divisor = s->lcr & LCR_DLAB;
	switch (reg) {
	case DATA:
		if (divisor) {
			s->divisor[0] = value;
			return;
		}
		if (!(s->mcr & MCR_LOOP))
			put(s, (char)value);
		s->thre = true;
		interrupt(s);
		return;
	case IER: {
		if (divisor) {
			s->divisor[1] = value;
			return;
		}
		/* Enabling the interrupt while the transmitter is empty gives one. */
		bool on = (value & IER_THRE) && !(s->ier & IER_THRE);
		s->ier = value & IER_ALL;
		if (on) {
			s->thre = true;
			interrupt(s);
		}
		return;
	}
	case IIR_FCR:
		s->fifos = value & FCR_ENABLE;
		return;
	case LCR:
		s->lcr = value;
		return;
	case MCR:
		s->mcr = value & MCR_ALL;
		return;
	case SCR:
		s->scr = value;
		return;
	default:
		return;
	}
}

uint8_t serial_read(struct serial *s, unsigned reg)
{
	pthread_mutex_lock(&s->lock);
	uint8_t value = read_register(s, reg);
	pthread_mutex_unlock(&s->lock);
	return value;
}

void serial_write(struct serial *s, unsigned reg, uint8_t value)
{
	pthread_mutex_lock(&s->lock);
	write_register(s, reg, value);
	pthread_mutex_unlock(&s->lock);
}

/* --- the whole --- */

struct serial *serial_new(int log, int irq, struct error *err)
{
	struct serial *s = calloc(1, sizeof(*s));
	if (!s) {
		error_set(err, -ENOMEM, 500, "no memory");
		if (log >= 0)
			close(log);
		if (irq >= 0)
			close(irq);
		return NULL;
	}
	pthread_mutex_init(&s->lock, NULL);
	s->log = log;
	s->irq = irq;
	if (log_open(s, err) < 0) {
		serial_free(s);
		return NULL;
	}
	return s;
}

void serial_free(struct serial *s)
{
	if (!s)
		return;
	write_out(s);
	if (s->log >= 0)
		close(s->log);
	if (s->irq >= 0)
		close(s->irq);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void serial_flush(struct serial *s)
{
	pthread_mutex_lock(&s->lock);
	write_out(s);
	pthread_mutex_unlock(&s->lock);
}

bool serial_panicked(struct serial *s)
{
	return s->panicked;
}

void serial_save(struct serial *s, struct buf *to)
{
	pthread_mutex_lock(&s->lock);
	const unsigned char state[STATE] = {STATE_VERSION, s->ier, s->lcr, s->mcr, s->scr, s->divisor[0], s->divisor[1], s->fifos, s->thre};
	pthread_mutex_unlock(&s->lock);
	buf_add(to, state, sizeof(state));
}

int serial_load(struct serial *s, struct str from)
{
	const unsigned char *state = (const unsigned char *)from.p;
	if (from.n != STATE || state[0] != STATE_VERSION || (state[1] & ~IER_ALL) || (state[3] & ~MCR_ALL) || state[7] > 1 || state[8] > 1 || state[9] != 0)
		return -EINVAL;
	pthread_mutex_lock(&s->lock);
	s->ier = state[1];
	s->lcr = state[2];
	s->mcr = state[3];
	s->scr = state[4];
	s->divisor[0] = state[5];
	s->divisor[1] = state[6];
	s->fifos = state[7];
	s->thre = state[8];
	interrupt(s);
	pthread_mutex_unlock(&s->lock);
	return 0;
}
