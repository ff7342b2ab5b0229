#include "node/idempotency.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>

/* The team, NUL, the name. */
struct key {
	size_t n;
	char bytes[sizeof(((struct sandbox *)NULL)->team) + sizeof(((struct sandbox *)NULL)->idempotency)];
};

static struct str key_of(struct key *k, struct str team, struct str name)
{
	memcpy(k->bytes, team.p, team.n);
	k->bytes[team.n] = 0;
	memcpy(k->bytes + team.n + 1, name.p, name.n);
	k->n = team.n + 1 + name.n;
	return str_n(k->bytes, k->n);
}

static struct str key_of_live(struct key *k, const struct live *l)
{
	return key_of(k, str_of(l->s.team), str_of(l->s.idempotency));
}

int idempotency_take(struct live *l)
{
	struct key k;
	return *l->s.idempotency ? map_put(&l->node->names, key_of_live(&k, l), l, NULL) : 0;
}

void idempotency_give(struct live *l)
{
	struct key k;
	if (*l->s.idempotency && map_get(&l->node->names, key_of_live(&k, l)) == l)
		map_del(&l->node->names, key_of_live(&k, l));
}

int idempotency_fill(struct sandbox *s, const struct msg_create *m, struct error *err)
{
	if (!msg_has(m, create, idempotency))
		return 0;
	for (size_t i = 0; i < m->idempotency.n; i++)
		if (m->idempotency.p[i] <= ' ' || m->idempotency.p[i] > '~')
			return error_set(err, -EINVAL, 400, "Idempotency-Key: only visible ASCII characters");
	if (!m->idempotency.n || !sandbox_copy(s->idempotency, sizeof(s->idempotency), m->idempotency))
		return error_set(err, -EINVAL, 400, "Idempotency-Key: 1 to %zu characters", sizeof(s->idempotency) - 1);
	if (!m->fingerprint.n || !sandbox_copy(s->fingerprint, sizeof(s->fingerprint), m->fingerprint))
		return error_set(err, -EINVAL, 400, "Idempotency-Key: the fingerprint of the request is missing");
	return 0;
}

static void refuse(struct request *r, const struct live *l, const char *why)
{
	struct error err;
	error_set(&err, -EBUSY, 409, "Idempotency-Key: sandbox %s was made with it, %s", l->s.id, why);
	request_fail(r, &err);
}

bool idempotency_repeat(struct node *n, struct request *r, const struct msg_create *m)
{
	struct key k;
	if (!m->idempotency.n || m->idempotency.n >= sizeof(((struct sandbox *)NULL)->idempotency) || m->team.n >= sizeof(((struct sandbox *)NULL)->team))
		return false; /* the create will say so */
	struct live *l = map_get(&n->names, key_of(&k, m->team, m->idempotency));
	if (!l)
		return false;
	log_write(LOG_INFO, &(struct log_ids){.request = str_of(r->text), .sandbox = str_of(l->s.id)}, "its create is asked for again");
	if (!str_is(m->fingerprint, l->s.fingerprint))
		refuse(r, l, "for a request that said something else");
	else if (l->s.state == SANDBOX_KILLING)
		refuse(r, l, "and is being ended: try again");
	else if (l->s.state == SANDBOX_CREATING)
		request_queue(&l->create, r);
	else
		request_answer_sandbox(r, l, false);
	return true;
}
