/*
 * The static chains. They only ever drop (and masquerade), so they stand beside the tables of Docker, ufw or firewalld, whatever order those come in:
 * a packet must pass every table.
 */
#include "network/host.h"
#include "base/cleanup.h"
#include "sys/program.h"

#include <stdio.h>

/* One sandbox's share of the host's connection table. Without a limit one of them fills it for the whole machine. */
enum { FLOWS_PER_SANDBOX = 4096 };

static void denied_set(struct buf *to, struct ipv4_range pool)
{
	char text[IPV4_TEXT];
	bool covered = false;
	buf_add_c(to, "\tset denied {\n\t\ttype ipv4_addr\n\t\tflags interval\n\t\telements = { ");
	for (size_t i = 0; i < network_private_count; i++) {
		buf_addf(to, "%s%s", i ? ", " : "", ipv4_range_format(text, network_private[i]));
		covered |= ipv4_range_overlap(network_private[i], pool);
	}
	if (!covered)
		buf_addf(to, ", %s", ipv4_range_format(text, pool));
	buf_add_c(to, " }\n\t}\n");
}

/* Private addresses that a sandbox's policy names (allowOut), by sandbox. */
static void opened_set(struct buf *to, struct str opened)
{
	buf_add_c(to, "\tset opened {\n\t\ttype ipv4_addr . ipv4_addr\n\t\tflags interval\n");
	if (opened.n)
		buf_addf(to, "\t\telements = { %.*s }\n", STR_FMT(opened));
	buf_add_c(to, "\t}\n");
}

static void chains(struct buf *to, const struct instance *i, struct ipv4_range pool, struct str opened, bool fib, bool flows)
{
	char range[IPV4_TEXT];
	ipv4_range_format(range, pool);
	/* Added, so that deleting never fails; the three happen in one transaction. */
	buf_addf(to, "add table inet %s\ndelete table inet %s\ntable inet %s {\n", i->table, i->table, i->table);
	denied_set(to, pool);
	opened_set(to, opened);
	if (flows)
		buf_add_c(to, "\tset flows {\n\t\ttype ipv4_addr\n\t\tsize 65536\n\t\tflags dynamic\n\t}\n");
	/* Before address translation and connection tracking: wrong sources (the reverse path must be the link itself), forbidden destinations. */
	buf_addf(to, "\tchain prerouting {\n\t\ttype filter hook prerouting priority raw; policy accept;\n"
		     "\t\tmeta iifgroup != %#x accept\n"
		     "\t\tmeta nfproto != ipv4 drop\n"
		     "\t\tip saddr != %s drop\n"
		     "%s"
		     "\t\tip saddr . ip daddr @opened accept\n"
		     "\t\tip daddr @denied drop\n\t}\n",
		i->link_group, range, fib ? "\t\tfib saddr . iif oif 0 drop\n" : "");
	buf_addf(to, "\tchain input {\n\t\ttype filter hook input priority filter - 10; policy accept;\n"
		     "\t\tmeta iifgroup %#x drop\n\t}\n", i->link_group);
	/* Again after address translation: somebody's DNAT may have led to a private address. */
	buf_addf(to, "\tchain forward {\n\t\ttype filter hook forward priority filter - 10; policy accept;\n"
		     "\t\tmeta oifgroup %#x meta iifgroup %#x drop\n"
		     "\t\tmeta oifgroup %#x ct state != { established, related } drop\n"
		     "\t\tmeta iifgroup != %#x accept\n"
		     "\t\tip saddr . ip daddr != @opened ip daddr @denied drop\n",
		i->link_group, i->link_group, i->link_group, i->link_group);
	if (flows)
		buf_addf(to, "\t\tct state new add @flows { ip saddr ct count over %d } drop\n", FLOWS_PER_SANDBOX);
	buf_add_c(to, "\t}\n");
	/* The host itself talks to no sandbox by the link; its ICMP errors about forwarded packets are `related`. */
	buf_addf(to, "\tchain output {\n\t\ttype filter hook output priority filter - 10; policy accept;\n"
		     "\t\tmeta oifgroup %#x ct state != { established, related } drop\n\t}\n", i->link_group);
	buf_addf(to, "\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n"
		     "\t\tip saddr %s meta oifgroup != %#x masquerade\n\t}\n}\n", range, i->link_group);
}

static int run_nft(struct str input, struct buf *output, struct error *err)
{
	static const char *const argv[] = {"nft", "-f", "-", NULL};
	int r = program_run(argv, input, output, err);
	if (r == -ENOENT)
		return error_set(err, r, 500, "nft is not installed: sandboxes cannot be kept off the host's networks without it (package nftables)");
	return r;
}

int host_chains_install(const struct instance *i, struct ipv4_range pool, struct str opened, struct buf *notes, struct error *err)
{
	/* From everything to the least that is safe: rp_filter checks sources as well; the limit of flows protects availability only. */
	static const struct {
		bool fib, flows;
		const char *note;
	} tries[] = {
		{true, true, NULL},
		{false, true, "this kernel's nftables has no fib expression: wrong source addresses are dropped by rp_filter alone"},
		{true, false, "this kernel's nftables cannot count connections: one sandbox can fill the host's connection table"},
		{false, false, "this kernel's nftables can neither count connections nor check reverse paths: one sandbox can fill the host's connection table"},
	};
	cleanup_buf struct buf said = BUF_INIT;
	for (size_t k = 0; k < ARRAY_SIZE(tries); k++) {
		cleanup_buf struct buf rules = BUF_INIT, output = BUF_INIT;
		chains(&rules, i, pool, opened, tries[k].fib, tries[k].flows);
		if (rules.failed)
			return error_errno(err, -ENOMEM, "nftables");
		int r = run_nft(buf_str(&rules), &output, err);
		if (r < 0)
			return r;
		if (r == 0 && tries[k].note)
			buf_addf(notes, "%s\n", tries[k].note);
		if (r == 0)
			return 0;
		if (!k)
			buf_add_str(&said, buf_str(&output));
	}
	return error_set(err, -EOPNOTSUPP, 500, "nft cannot install the chains that keep sandboxes off the host's networks (does this kernel have nftables with inet tables, "
		"conntrack and NAT? see `cubicle doctor`): %.200s", buf_cstr(&said));
}

void host_chains_remove(const struct instance *i)
{
	char text[100];
	snprintf(text, sizeof(text), "add table inet %s\ndelete table inet %s\n", i->table, i->table);
	run_nft(str_of(text), NULL, NULL);
}

/* Whether the chain FORWARD of iptables exists (asking the program itself would create it on some machines). */
static bool iptables_in_use(void)
{
	static const char *const argv[] = {"nft", "list", "chain", "ip", "filter", "FORWARD", NULL};
	char line[64];
	bool found = false;
	FILE *legacy = fopen("/proc/net/ip_tables_names", "re");
	while (legacy && !found && fgets(line, sizeof(line), legacy))
		found = !strcmp(line, "filter\n");
	if (legacy)
		fclose(legacy);
	return found || program_run(argv, STR(""), NULL, NULL) == 0;
}

static int iptables_rule(const char *action, const char *const *match, struct error *err)
{
	const char *argv[24] = {"iptables", "-w", "5", action, "FORWARD"};
	size_t n = 5;
	while (*match)
		argv[n++] = *match++;
	cleanup_buf struct buf output = BUF_INIT;
	int r = program_run(argv, STR(""), &output, err);
	return r > 0 ? error_set(err, -EIO, 500, "iptables: %.200s", buf_cstr(&output)) : r;
}

int host_iptables(const struct instance *i, bool on, struct buf *notes, struct error *err)
{
	char links[16];
	snprintf(links, sizeof(links), "cub%sx+", i->tag);
	const char *const out[] = {"-i", links, "-m", "comment", "--comment", i->table, "-j", "ACCEPT", NULL};
	const char *const back[] = {
		"-o", links, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-m", "comment", "--comment", i->table, "-j", "ACCEPT", NULL};
	const char *const *const rules[] = {out, back};
	static const char *const list[] = {"iptables", "-w", "5", "-S", "FORWARD", NULL};
	cleanup_buf struct buf policy = BUF_INIT;
	if (!iptables_in_use())
		return 0;
	int r = program_run(list, STR(""), &policy, err);
	if (r == -ENOENT)
		return 0;
	if (r != 0)
		return r < 0 ? r : error_set(err, -EIO, 500, "iptables: %.200s", buf_cstr(&policy));
	bool drops = str_starts(buf_str(&policy), STR("-P FORWARD DROP"));
	for (size_t k = 0; k < ARRAY_SIZE(rules); k++) {
		bool there = iptables_rule("-C", rules[k], NULL) == 0;
		if (on && drops && !there)
			r = iptables_rule("-I", rules[k], err);
		else if (!on && there)
			r = iptables_rule("-D", rules[k], err);
		if (r < 0)
			return r;
	}
	if (on && drops)
		buf_addf(notes, "iptables drops what it forwards: a rule for the sandboxes' links (%s) was put into its chain FORWARD\n", links);
	return 0;
}
