#include "fuzz.h"

#include "image/spec.h"
#include "image/steps.h"

/* A build's spec, which node passes on unread: what is taken is bounded and whole, and its texts expand or are refused. */
void fuzz_one(struct str input)
{
	struct build_spec s = {0};
	struct error err = {0};
	int r = spec_parse(input, &s, &err);
	hold(r == 0 || (r < 0 && err.message[0] && err.status == 400));
	if (r < 0) {
		hold(!s.json && !s.steps);
		return;
	}
	hold((s.image != NULL) + (s.from == SPEC_FROM_BASE) + (s.source_hash != NULL) + (s.dockerfile != NULL) == 1);
	hold(s.n_steps <= SPEC_MAX_STEPS && s.command && s.args && s.env && s.probe_port <= 65535);
	struct env env = {0};
	for (size_t i = 0; i < s.n_steps; i++) {
		const struct spec_step *step = &s.steps[i];
		hold(step->n_args >= 1 && step->n_args <= SPEC_MAX_ARGS && !step->args[step->n_args]);
		hold((step->type == SPEC_COPY) == (step->files != NULL));
		for (size_t j = 0; j < step->n_args; j++) {
			cleanup_buf struct buf value = BUF_INIT, path = BUF_INIT;
			hold(step->args[j] != NULL);
			if (steps_expand(str_of(step->args[j]), &env, &value, &err) == 0)
				env_set(&env, STR("A"), buf_str(&value));
			hold(steps_join("/work", str_of(step->args[j]), &path) == 0);
			hold(path.data[path.start] == '/');
		}
	}
	hold(env.bytes <= ENV_BYTES);
	env_done(&env);
	spec_done(&s);
}
