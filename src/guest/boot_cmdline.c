#include "guest/boot.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>

static int bad(struct error *err, struct str word)
{
	return error_set(err, -EINVAL, 500, "the kernel's command line says %.*s, which is not understood", STR_FMT(word));
}

static int number(struct str s, uint64_t least, uint64_t most, unsigned *ret)
{
	uint64_t n;
	if (str_to_u64(s, &n) < 0 || n < least || n > most)
		return -EINVAL;
	*ret = (unsigned)n;
	return 0;
}

static int address(struct str s, uint32_t *ret)
{
	char text[INET_ADDRSTRLEN];
	struct in_addr in;
	if (s.n >= sizeof(text))
		return -EINVAL;
	snprintf(text, sizeof(text), "%.*s", STR_FMT(s));
	if (inet_pton(AF_INET, text, &in) != 1 || !in.s_addr)
		return -EINVAL;
	*ret = ntohl(in.s_addr);
	return 0;
}

/* ADDRESS/PREFIX,GATEWAY */
static int network(struct str s, struct boot_config *c)
{
	struct str own, gateway, prefix;
	if (!str_cut(s, ',', &own, &gateway) || !str_cut(own, '/', &own, &prefix))
		return -EINVAL;
	return address(own, &c->address) < 0 || number(prefix, 1, 32, &c->prefix) < 0 || address(gateway, &c->gateway) < 0 ? -EINVAL : 0;
}

static int take(struct str word, struct boot_config *c)
{
	struct str name, value;
	if (!str_starts(word, STR("cubicle.")) || !str_cut(word, '=', &name, &value))
		return 0;
	if (str_is(name, "cubicle.layers"))
		return number(value, 1, BOOT_MAX_LAYERS, &c->layers);
	if (str_is(name, "cubicle.net"))
		return network(value, c);
	if (str_is(name, "cubicle.mtu"))
		return number(value, 576, 65535, &c->mtu);
	if (str_is(name, "cubicle.pids"))
		return number(value, 1, 4000000, &c->pids);
	return 0;
}

int boot_cmdline_parse(struct str text, struct boot_config *ret, struct error *err)
{
	struct boot_config c = {0};
	while (text.n) {
		size_t n = 0;
		while (n < text.n && text.p[n] != ' ' && text.p[n] != '\n')
			n++;
		if (take(str_n(text.p, n), &c) < 0)
			return bad(err, str_n(text.p, n));
		text = str_from(text, n + 1);
	}
	if (!c.layers)
		return error_set(err, -EINVAL, 500, "the kernel's command line does not say cubicle.layers=N");
	*ret = c;
	return 0;
}
