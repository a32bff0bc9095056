// SPDX-License-Identifier: Apache-2.0
//
// The load generator of the section kernel: a pod with CLIENTS clients, each a thread with a socket. A client sends a query with
// sendto and waits in recv for the answer, BURST times one after the other. Then it sleeps until the next burst is due.
//
// usage: paced IPV4-ADDRESS QUERIES-PER-SECOND SECONDS LIST
//
// LIST has lines of a name and a type, which is A. A rate of 0 is as fast as possible. It prints what all clients sent, how many answers
// they got, how many of them are without a record, the median and the 99th percentile of their latency in ns, and how long all CPUs of
// the machine were in use meanwhile, in ms.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
	CLIENTS = 16,
	BURST = 8,
	QUERIES = 1 << 16,
	QUERY_MAX = 128,
	BUCKETS = 1 << 20, // of latencies
	BUCKET = 100, // ns
};

struct query {
	uint8_t len, bytes[QUERY_MAX];
};

static struct query queries[QUERIES];
static int count;
static struct sockaddr_in at = {.sin_family = AF_INET};
static double rate;
static int64_t start, end;
static long latencies[BUCKETS], sent, got, empty;

static void die(const char *what)
{
	fprintf(stderr, "paced: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// used is the CPU time of the machine up to now in ms, plus a constant. The kernel measures how long a CPU is idle exactly, but only
// samples how it is used.
static double used(void)
{
	double idle, wait;
	FILE *f = fopen("/proc/stat", "r");
	if (!f || fscanf(f, "cpu %*s %*s %*s %lf %lf", &idle, &wait) != 2)
		die("reading /proc/stat");
	fclose(f);
	return (double)now() / 1e6 * (double)sysconf(_SC_NPROCESSORS_ONLN) - (idle + wait) * 1000 / (double)sysconf(_SC_CLK_TCK);
}

// pack writes the query for the A records of a name. It returns its length.
static int pack(uint8_t *q, char *name)
{
	int n = 12;
	q[2] = 1; // RD
	q[5] = 1; // one question
	for (char *label = strtok(name, "."); label; label = strtok(NULL, ".")) {
		int len = (int)strlen(label);
		if (n + len + 6 > QUERY_MAX) {
			errno = ENAMETOOLONG;
			die(label);
		}
		q[n++] = (uint8_t)len;
		memcpy(q + n, label, len);
		n += len;
	}
	memcpy(q + n, "\0\0\1\0\1", 5);
	return n + 5;
}

static void read_list(const char *path)
{
	char name[256];
	FILE *f = fopen(path, "r");
	if (!f)
		die(path);
	for (; count < QUERIES && fscanf(f, "%255s %*s", name) == 1; count++)
		queries[count].len = (uint8_t)pack(queries[count].bytes, name);
	fclose(f);
}

static void sleep_until(int64_t when)
{
	struct timespec t = {when / 1000000000, when % 1000000000};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

// ask sends one query and waits for its answer.
static void ask(int fd, struct query *q)
{
	uint8_t reply[2048];
	ssize_t n;
	int64_t began = now();
	__atomic_fetch_add(&sent, 1, __ATOMIC_RELAXED);
	if (send(fd, q->bytes, q->len, 0) < 0)
		die("sending");
	do
		n = recv(fd, reply, sizeof reply, 0);
	while (n >= 0 && (n < 12 || memcmp(reply, q->bytes, 2) != 0)); // of a query given up
	if (n < 0)
		return;
	int64_t took = (now() - began) / BUCKET;
	__atomic_fetch_add(&latencies[took < BUCKETS ? took : BUCKETS - 1], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&got, 1, __ATOMIC_RELAXED);
	if (reply[7] == 0)
		__atomic_fetch_add(&empty, 1, __ATOMIC_RELAXED);
}

static void *client(void *number)
{
	struct timeval patience = {.tv_sec = 1};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("opening a socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	for (long burst = (long)(intptr_t)number;; burst += CLIENTS) {
		int64_t due = rate > 0 ? start + (int64_t)((double)burst * BURST * 1e9 / rate) : now();
		if (due >= end)
			return NULL;
		if (now() < due)
			sleep_until(due);
		for (long i = burst * BURST; i < (burst + 1) * BURST; i++) {
			struct query q = queries[i % count];
			q.bytes[0] = (uint8_t)(i >> 8);
			q.bytes[1] = (uint8_t)i;
			ask(fd, &q);
		}
	}
}

static long percentile(double share)
{
	long below = 0;
	for (int i = 0; i < BUCKETS; i++)
		if ((below += latencies[i]) > 0 && (double)below >= share * (double)got)
			return (long)i * BUCKET;
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t clients[CLIENTS];
	if (argc != 5 || inet_pton(AF_INET, argv[1], &at.sin_addr) != 1)
		return 2;
	at.sin_port = htons(53);
	rate = atof(argv[2]);
	read_list(argv[4]);
	double before = used();
	start = now();
	end = start + (int64_t)(atof(argv[3]) * 1e9);
	for (int i = 0; i < CLIENTS; i++)
		if (pthread_create(&clients[i], NULL, client, (void *)(intptr_t)i) != 0)
			die("starting a thread");
	for (int i = 0; i < CLIENTS; i++)
		pthread_join(clients[i], NULL);
	printf("%ld %ld %ld %ld %ld %.0f\n", sent, got, empty, percentile(0.5), percentile(0.99), used() - before);
	return 0;
}
