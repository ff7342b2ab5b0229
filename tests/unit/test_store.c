#include "unit.h"

#include "base/cleanup.h"
#include "base/fd.h"
#include "store/store.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char dir[] = "/tmp/cubicle-test-store-XXXXXX";
static char path[64];

static const char *const schema[] = {
	"CREATE TABLE t (k TEXT PRIMARY KEY, v BLOB NOT NULL, n INTEGER CHECK (n >= 0)) STRICT",
	"ALTER TABLE t ADD COLUMN extra TEXT",
};

static int fresh(void **state)
{
	remove_tree(AT_FDCWD, dir);
	assert_int_equal(make_dirs(dir, 0700), 0);
	snprintf(path, sizeof(path), "%s/db", dir);
	return 0;
}

static struct store *open_store(size_t versions)
{
	struct store *s = NULL;
	struct error err = {0};
	if (store_open(path, 0, schema, versions, &s, &err) < 0)
		fail_msg("%s", err.message);
	return s;
}

static int put(struct store *s, struct str k, struct str v, int64_t n, struct error *err)
{
	cleanup_stmt struct stmt *q = store_prepare(s, "INSERT INTO t (k, v, n) VALUES (?, ?, ?)", err);
	assert_non_null(q);
	stmt_text(q, 1, k);
	stmt_blob(q, 2, v);
	stmt_i64(q, 3, n);
	return stmt_step(q, err);
}

static int64_t count(struct store *s)
{
	cleanup_stmt struct stmt *q = store_prepare(s, "SELECT count(*) FROM t", NULL);
	assert_int_equal(stmt_step(q, NULL), 1);
	return stmt_get_i64(q, 0);
}

static void values_come_back_as_they_went(void **state)
{
	struct store *s = open_store(2);
	assert_int_equal(put(s, STR("a"), STR("x\0y"), 7, NULL), 0);
	assert_int_equal(put(s, STR("empty"), STR(""), 0, NULL), 0);
	store_free(s);
	s = open_store(2);
	cleanup_stmt struct stmt *q = store_prepare(s, "SELECT v, n, extra FROM t ORDER BY k", NULL);
	assert_int_equal(stmt_step(q, NULL), 1);
	assert_int_equal(stmt_get_str(q, 0).n, 3);
	assert_memory_equal(stmt_get_str(q, 0).p, "x\0y", 3);
	assert_int_equal(stmt_get_i64(q, 1), 7);
	assert_true(stmt_get_null(q, 2));
	assert_int_equal(stmt_step(q, NULL), 1);
	assert_int_equal(stmt_get_str(q, 0).n, 0);
	assert_int_equal(stmt_step(q, NULL), 0);
	stmt_done(steal_pointer(&q));
	store_free(s);
}

static void migrations_run_once_and_a_newer_file_is_refused(void **state)
{
	struct store *s = open_store(1);
	assert_int_equal(put(s, STR("a"), STR("b"), 1, NULL), 0);
	store_free(s);
	s = open_store(2); /* running the first again would fail: the table exists */
	assert_int_equal(count(s), 1);
	store_free(s);
	struct error err = {0};
	assert_int_equal(store_open(path, 0, schema, 1, &s, &err), -EPROTO);
	assert_non_null(strstr(err.message, "version 2"));
}

static void a_failing_migration_leaves_the_version_before(void **state)
{
	static const char *const bad[] = {"CREATE TABLE t (k TEXT)", "CREATE TABLE u (k TEXT); CREATE TABLE t (k TEXT)"};
	struct store *s = NULL;
	assert_true(store_open(path, 0, bad, 2, &s, NULL) < 0);
	assert_int_equal(store_open(path, 0, bad, 1, &s, NULL), 0);
	struct stmt *q = store_prepare(s, "SELECT count(*) FROM sqlite_schema WHERE name = 'u'", NULL);
	assert_int_equal(stmt_step(q, NULL), 1);
	assert_int_equal(stmt_get_i64(q, 0), 0);
	stmt_done(q);
	store_free(s);
}

static void rules_have_codes_of_their_own(void **state)
{
	struct store *s = open_store(2);
	struct error err = {0};
	assert_int_equal(put(s, STR("a"), STR("b"), 1, NULL), 0);
	assert_int_equal(put(s, STR("a"), STR("b"), 1, &err), -EEXIST);
	assert_int_equal(put(s, STR("c"), STR("b"), -1, &err), -EINVAL);
	assert_null(store_prepare(s, "SELECT nothing FROM nowhere", &err));
	assert_int_equal(err.code, -EPROTO);
	assert_int_equal(count(s), 1); /* the lock was given back */
	store_free(s);
}

static void a_rolled_back_transaction_leaves_nothing(void **state)
{
	struct store *s = open_store(2);
	assert_int_equal(store_begin(s, STORE_FULL, NULL), 0);
	assert_int_equal(put(s, STR("a"), STR("b"), 1, NULL), 0);
	store_rollback(s);
	assert_int_equal(count(s), 0);
	assert_int_equal(store_begin(s, STORE_NORMAL, NULL), 0);
	assert_int_equal(put(s, STR("a"), STR("b"), 1, NULL), 0);
	assert_int_equal(store_commit(s, NULL), 0);
	assert_int_equal(count(s), 1);
	store_free(s);
}

/* A process that ends without a word after commit has committed; one that ends before has not. */
static void a_commit_survives_a_sudden_end(void **state)
{
	pid_t pid = fork();
	if (pid == 0) {
		struct store *s = NULL;
		if (store_open(path, 0, schema, 2, &s, NULL) < 0 || store_begin(s, STORE_NORMAL, NULL) < 0 ||
			put(s, STR("in"), STR(""), 1, NULL) < 0 || store_commit(s, NULL) < 0 || store_begin(s, STORE_FULL, NULL) < 0 ||
			put(s, STR("out"), STR(""), 1, NULL) < 0)
			_exit(1);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	assert_int_equal(status, 0);
	struct store *s = open_store(2);
	assert_int_equal(count(s), 1);
	store_free(s);
}

static void a_reader_sees_commits_and_cannot_write(void **state)
{
	struct store *s = open_store(2), *r = NULL;
	assert_int_equal(store_open(path, STORE_READER, schema, 2, &r, NULL), 0);
	assert_int_equal(store_begin(s, STORE_NORMAL, NULL), 0);
	assert_int_equal(put(s, STR("a"), STR("b"), 1, NULL), 0);
	assert_int_equal(count(r), 0); /* not blocked by the open transaction, which it does not see */
	assert_int_equal(store_commit(s, NULL), 0);
	assert_int_equal(count(r), 1);
	assert_true(put(r, STR("c"), STR("d"), 1, NULL) < 0);
	store_free(r);
	store_free(s);
}

static void *write_many(void *arg)
{
	struct store *s = arg;
	for (int i = 0; i < 50; i++) {
		char key[64];
		snprintf(key, sizeof(key), "%lx-%d", (unsigned long)pthread_self(), i);
		if (store_begin(s, STORE_NORMAL, NULL) < 0 || put(s, str_of(key), STR("v"), 1, NULL) < 0 || store_commit(s, NULL) < 0)
			return (void *)1;
	}
	return NULL;
}

static void threads_take_turns(void **state)
{
	struct store *s = open_store(2);
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_many, s), 0);
	for (int i = 0; i < 4; i++) {
		void *result;
		pthread_join(threads[i], &result);
		assert_null(result);
	}
	assert_int_equal(count(s), 200);
	store_free(s);
}

static void the_file_is_private_and_damage_is_an_error(void **state)
{
	struct store *s = open_store(2);
	struct stat st;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	store_free(s);
	struct error err = {0};
	assert_int_equal(file_replace(AT_FDCWD, path, STR("this is no database, but it is long enough to be looked at as if it were one, which needs 100 bytes"), 0600), 0);
	assert_int_equal(store_open(path, 0, schema, 2, &s, &err), -EIO);
	assert_int_equal(err.status, 500);
}

int main(void)
{
	if (!mkdtemp(dir))
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(values_come_back_as_they_went, fresh),
		cmocka_unit_test_setup(migrations_run_once_and_a_newer_file_is_refused, fresh),
		cmocka_unit_test_setup(a_failing_migration_leaves_the_version_before, fresh),
		cmocka_unit_test_setup(rules_have_codes_of_their_own, fresh),
		cmocka_unit_test_setup(a_rolled_back_transaction_leaves_nothing, fresh),
		cmocka_unit_test_setup(a_commit_survives_a_sudden_end, fresh),
		cmocka_unit_test_setup(a_reader_sees_commits_and_cannot_write, fresh),
		cmocka_unit_test_setup(threads_take_turns, fresh),
		cmocka_unit_test_setup(the_file_is_private_and_damage_is_an_error, fresh),
	};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	remove_tree(AT_FDCWD, dir);
	return r;
}
