#include "node/images.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "node/layers.h"
#include "sandbox/backend.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/file.h>

static const char copies[] = "snapshots/";

struct search {
	struct str name;
	bool found;
};

static void look(const struct template *t, void *arg)
{
	struct search *s = arg;
	for (size_t i = 0; i < t->n_layers; i++)
		s->found |= str_eq(str_of(t->layers[i].file), s->name);
}

static bool named_by_template(const struct images *m, struct str name)
{
	struct search s = {.name = name};
	templates_each(m->templates, look, &s);
	templates_each_build(m->templates, look, &s);
	return s.found;
}

unsigned images_users(const struct images *m, struct str name)
{
	return (unsigned)(uintptr_t)map_get(&m->users, name);
}

static void drop(struct images *m, struct str name)
{
	char path[PATH_MAX];
	if (!m->backend || (size_t)snprintf(path, sizeof(path), "%s/%.*s", m->directory, STR_FMT(name)) >= sizeof(path))
		return;
	log_info("image %.*s is not used any more", STR_FMT(name));
	backend_drop_image(m->backend, path);
}

bool images_in_use(const struct images *m, struct str name)
{
	return images_users(m, name) || named_by_template(m, name);
}

void images_unused(struct images *m, struct str name)
{
	if (images_in_use(m, name))
		return;
	if (str_starts(name, str_of(copies)) || (!templates_skipped(m->templates) && !(m->layers && layers_keep(m->layers, name))))
		drop(m, name);
}

void images_unnamed(struct images *m, struct msg_list layers)
{
	struct str rest = layers.raw, name;
	while (msg_list_next(&rest, &name))
		images_unused(m, name);
}

void images_use(struct images *m, struct str name)
{
	if (map_put(&m->users, name, (void *)(uintptr_t)(images_users(m, name) + 1), NULL) < 0)
		abort();
}

void images_leave(struct images *m, struct str name)
{
	unsigned users = images_users(m, name);
	if (users > 1) {
		if (map_put(&m->users, name, (void *)(uintptr_t)(users - 1), NULL) < 0)
			abort();
		return;
	}
	map_del(&m->users, name);
	images_unused(m, name);
}

void images_use_all(struct images *m, struct msg_list layers)
{
	struct str rest = layers.raw, name;
	while (msg_list_next(&rest, &name))
		images_use(m, name);
}

void images_leave_all(struct images *m, struct msg_list layers)
{
	struct str rest = layers.raw, name;
	while (msg_list_next(&rest, &name))
		images_leave(m, name);
}

static void note_layers(const struct template *t, void *arg)
{
	for (size_t i = 0; i < t->n_layers; i++)
		msg_list_add(arg, str_of(t->layers[i].file));
}

int images_reload_templates(struct images *m, struct templates *t, void (*changed)(const struct template *t, bool gone, void *arg), void *arg, struct error *err)
{
	cleanup_buf struct buf before = BUF_INIT, seen = BUF_INIT;
	templates_each(t, note_layers, &before);
	if (before.failed)
		return error_errno(err, -ENOMEM, "templates");
	int r = templates_load(t, m->directory, changed, arg, err);
	if (r < 0)
		return r;
	struct str rest = buf_str(&before), name;
	while (msg_list_next(&rest, &name)) {
		/* Two templates may have named it. */
		struct str others = buf_str(&seen), other;
		bool again = false;
		while (msg_list_next(&others, &other))
			again |= str_eq(other, name);
		if (!again)
			images_unused(m, name);
		msg_list_add(&seen, name);
	}
	return 0;
}

static void sweep_dir(struct images *m, const char *dir, const char *suffix)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", m->directory, dir);
	cleanup_dir DIR *d = opendir(path);
	for (struct dirent *e; d && (e = readdir(d));) {
		struct str name = str_of(e->d_name);
		size_t n = strlen(suffix);
		if (e->d_name[0] == '.' || e->d_type != DT_REG || name.n < n || !str_is(str_from(name, name.n - n), suffix))
			continue;
		int length = snprintf(path, sizeof(path), "%s%s", dir, e->d_name);
		images_unused(m, str_n(path, (size_t)length));
	}
}

void images_sweep(struct images *m)
{
	char path[PATH_MAX];
	/* Half-made copies, too, whatever they are called. */
	sweep_dir(m, copies, "");
	snprintf(path, sizeof(path), "%s/images", m->directory);
	cleanup_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Who makes a template holds this lock, and has images there that no template names yet. */
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		sweep_dir(m, "images/", ".erofs");
	/* Those are made by builds only. */
	sweep_dir(m, "images/", ".img");
}

void images_done(struct images *m)
{
	map_done(&m->users);
}
