// SPDX-License-Identifier: Apache-2.0
//
// The load generator of the section kernel: one pod with one socket. One thread sends each query with a sendto of its own when it is
// due; the other waits in recv for the answers.
//
// usage: paced IPV4-ADDRESS QUERIES-PER-SECOND SECONDS LIST
//
// LIST has lines of a name and a type, which is A. A rate of 0 is as fast as possible. It prints what it sent, how many answers it
// got, how many of them are without a record, the median and the 99th percentile of their latency in ns, and how long all CPUs of the
// machine were in use meanwhile, in ms.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
	QUERIES = 1 << 16,
	QUERY_MAX = 128,
	BUCKETS = 1 << 20, // of latencies, 100 ns each
	BUCKET = 100,
	LATE = 500000000, // ns after the last query
};

static struct { uint8_t len, bytes[QUERY_MAX]; } queries[QUERIES];
static int64_t sent_at[1 << 16];
static long latencies[BUCKETS], sent, got, empty;
static int fd;

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
	memset(q, 0, 12);
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

static int read_list(const char *path)
{
	char name[256];
	int n = 0;
	FILE *f = fopen(path, "r");
	if (!f)
		die(path);
	for (; n < QUERIES && fscanf(f, "%255s %*s", name) == 1; n++)
		queries[n].len = (uint8_t)pack(queries[n].bytes, name);
	fclose(f);
	return n;
}

static void *receive(void *unused)
{
	uint8_t reply[2048];
	ssize_t n;
	(void)unused;
	while ((n = recv(fd, reply, sizeof reply, 0)) >= 12) { // the end is a shutdown
		int64_t took = (now() - sent_at[reply[0] << 8 | reply[1]]) / BUCKET;
		latencies[took < BUCKETS ? took : BUCKETS - 1]++;
		got++;
		empty += reply[7] == 0;
	}
	return NULL;
}

static long percentile(double share)
{
	long below = 0;
	for (int i = 0; i < BUCKETS; i++)
		if ((below += latencies[i]) > 0 && below >= share * got)
			return (long)i * BUCKET;
	return 0;
}

static void sleep_until(int64_t at)
{
	struct timespec t = {at / 1000000000, at % 1000000000};
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	double rate = atof(argv[2]), seconds = atof(argv[3]);
	int count = read_list(argv[4]), buffer = 4 << 20;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(53)};
	pthread_t receiver;
	if (inet_pton(AF_INET, argv[1], &at.sin_addr) != 1 || count == 0)
		return 2;
	if ((fd = socket(AF_INET, SOCK_DGRAM, 0)) < 0 || connect(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("opening a socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof buffer);
	if (pthread_create(&receiver, NULL, receive, NULL) != 0)
		die("starting a thread");
	double before = used();
	int64_t start = now(), end = start + (int64_t)(seconds * 1e9), t;
	while ((t = now()) < end) {
		int64_t due = start + (int64_t)((double)sent * 1e9 / (rate > 0 ? rate : 1e9));
		if (t < due) {
			sleep_until(due);
			continue;
		}
		uint8_t *q = queries[sent % count].bytes;
		q[0] = (uint8_t)(sent >> 8);
		q[1] = (uint8_t)sent;
		sent_at[sent & 0xffff] = t;
		if (send(fd, q, queries[sent % count].len, 0) < 0 && errno != ENOBUFS)
			die("sending");
		sent++;
	}
	double took = used() - before;
	sleep_until(now() + LATE);
	shutdown(fd, SHUT_RD);
	pthread_join(receiver, NULL);
	printf("%ld %ld %ld %ld %ld %.0f\n", sent, got, empty, percentile(0.5), percentile(0.99), took);
	return 0;
}
