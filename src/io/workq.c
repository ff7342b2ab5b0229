#include "io/workq.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct job {
	struct job *next;
	struct loop *loop;
	void (*work)(void *arg);
	void (*done)(void *arg);
	void *arg;
};

struct workq {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct job *first, **last;
	unsigned queued, max_queued, threads;
	bool stop;
	pthread_t ids[];
};

static void complete(void *arg)
{
	struct job *job = arg;
	job->done(job->arg);
	free(job);
}

static void *worker(void *arg)
{
	struct workq *q = arg;
	for (;;) {
		pthread_mutex_lock(&q->lock);
		while (!q->first && !q->stop)
			pthread_cond_wait(&q->wake, &q->lock);
		if (q->stop) {
			pthread_mutex_unlock(&q->lock);
			return NULL;
		}
		struct job *job = q->first;
		q->first = job->next;
		q->queued--;
		pthread_mutex_unlock(&q->lock);
		job->work(job->arg);
		if (!job->done)
			free(job);
		else
			/* A completion may not get lost: without it the asker waits for ever. */
			while (loop_post(job->loop, complete, job) < 0)
				sched_yield();
	}
}

struct workq *workq_new(unsigned threads, unsigned max_queued)
{
	struct workq *q = calloc(1, sizeof(*q) + threads * sizeof(q->ids[0]));
	if (!q)
		return NULL;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->wake, NULL);
	q->max_queued = max_queued;
	/* Signals belong to the loop's thread. */
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (q->threads < threads && pthread_create(&q->ids[q->threads], NULL, worker, q) == 0)
		q->threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (q->threads < threads) {
		workq_free(q);
		return NULL;
	}
	return q;
}

void workq_free(struct workq *q)
{
	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	q->stop = true;
	pthread_cond_broadcast(&q->wake);
	pthread_mutex_unlock(&q->lock);
	for (unsigned i = 0; i < q->threads; i++)
		pthread_join(q->ids[i], NULL);
	while (q->first) {
		struct job *job = q->first;
		q->first = job->next;
		free(job);
	}
	pthread_cond_destroy(&q->wake);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

int workq_push(struct workq *q, struct loop *l, void (*work)(void *arg), void (*done)(void *arg), void *arg)
{
	struct job *job = malloc(sizeof(*job));
	if (!job)
		return -ENOMEM;
	*job = (struct job){.loop = l, .work = work, .done = done, .arg = arg};
	pthread_mutex_lock(&q->lock);
	if (q->queued >= q->max_queued) {
		pthread_mutex_unlock(&q->lock);
		free(job);
		return -EAGAIN;
	}
	if (!q->first)
		q->last = &q->first;
	*q->last = job;
	q->last = &job->next;
	q->queued++;
	pthread_cond_signal(&q->wake);
	pthread_mutex_unlock(&q->lock);
	return 0;
}

bool workq_take_back(struct workq *q, const void *arg)
{
	pthread_mutex_lock(&q->lock);
	struct job **at = &q->first;
	while (*at && (*at)->arg != arg)
		at = &(*at)->next;
	struct job *job = *at;
	if (job) {
		*at = job->next;
		if (q->last == &job->next)
			q->last = at;
		q->queued--;
	}
	pthread_mutex_unlock(&q->lock);
	free(job);
	return job;
}
