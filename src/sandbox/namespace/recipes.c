#include "sandbox/namespace/recipes.h"
#include "base/cleanup.h"

#include <stdlib.h>

static const double decay = 0.95, negligible = 0.01;

static void forget(struct recipes *r, struct recipe *one)
{
	for (size_t i = 0; i < one->n; i++)
		free(one->layers[i]);
	*one = (struct recipe){0};
	if (r->favourite == one)
		r->favourite = NULL;
}

static bool is(const struct recipe *one, const char *const *layers, size_t n)
{
	if (one->n != n)
		return false;
	for (size_t i = 0; i < n; i++)
		if (strcmp(one->layers[i], layers[i]) != 0)
			return false;
	return true;
}

static struct recipe *find(struct recipes *r, const char *const *layers, size_t n)
{
	for (size_t i = 0; i < ARRAY_SIZE(r->list); i++)
		if (is(&r->list[i], layers, n))
			return &r->list[i];
	return NULL;
}

static struct recipe *place_for(struct recipes *r)
{
	struct recipe *least = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(r->list); i++) {
		if (r->list[i].n == 0)
			return &r->list[i];
		if (&r->list[i] != r->favourite && (!least || r->list[i].demand < least->demand))
			least = &r->list[i];
	}
	forget(r, least);
	return least;
}

static struct recipe *add(struct recipes *r, const char *const *layers, size_t n)
{
	struct recipe *one = place_for(r);
	for (; one->n < n; one->n++)
		if (!(one->layers[one->n] = str_dup(str_of(layers[one->n])))) {
			forget(r, one);
			return NULL;
		}
	return one;
}

void recipes_ask(struct recipes *r, const char *const *layers, size_t n)
{
	struct recipe *one = find(r, layers, n);
	if (!one && !(one = add(r, layers, n)))
		return;
	one->demand++;
	one->asked++;
	/* Slots that have the wrong root are thrown away: who takes the place must be wanted much more. */
	if (one->asked > 1 && (!r->favourite || one->demand > 2 * r->favourite->demand))
		r->favourite = one;
}

void recipes_decay(struct recipes *r)
{
	for (size_t i = 0; i < ARRAY_SIZE(r->list); i++) {
		struct recipe *one = &r->list[i];
		one->demand *= decay;
		if (one->n && one != r->favourite && one->demand < negligible)
			forget(r, one);
	}
}

void recipes_forget_favourite(struct recipes *r)
{
	if (r->favourite)
		forget(r, r->favourite);
}

void recipes_forget_layer(struct recipes *r, const char *layer)
{
	for (size_t i = 0; i < ARRAY_SIZE(r->list); i++)
		for (size_t k = 0; k < r->list[i].n; k++)
			if (strcmp(r->list[i].layers[k], layer) == 0) {
				forget(r, &r->list[i]);
				break;
			}
}

unsigned recipes_bare(const struct recipes *r, unsigned wanted)
{
	double others = 0;
	if (!r->favourite)
		return wanted;
	for (size_t i = 0; i < ARRAY_SIZE(r->list); i++)
		if (&r->list[i] != r->favourite)
			others += r->list[i].demand;
	double share = others / (others + MAX(r->favourite->demand, negligible));
	return MIN(wanted, wanted / 8 + (unsigned)(share * wanted + 0.5));
}

void recipes_done(struct recipes *r)
{
	for (size_t i = 0; i < ARRAY_SIZE(r->list); i++)
		forget(r, &r->list[i]);
}
