// SPDX-License-Identifier: Apache-2.0
//
// The floor of the benchmark: what the socket calls alone cost.
//
// It takes up to BATCH datagrams in one recvmmsg, makes each the head of its own answer (one fixed A record),
// and hands all of them back in one sendmmsg. No parsing beyond the end of the question, no cache, no clock:
// a server on the same sockets cannot cost less per query.
//
// usage: floor IPV4-ADDRESS PORT

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
	BATCH = 64,
	HEADER = 12,
	QUERY_MAX = 1500,    // more than any query that dnsperf sends
	RCVBUF = 4 << 20,    // bytes asked for; the kernel caps it at net.core.rmem_max
};

// A record at the question's name (pointer to offset 12), class IN, TTL 30, address 10.0.0.1.
static const unsigned char answer[] = {0xc0, HEADER, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 10, 0, 0, 1};

struct slot {
	struct sockaddr_in from;
	struct iovec iov;
	unsigned char bytes[QUERY_MAX + sizeof answer];
};

static struct slot slots[BATCH];
static struct mmsghdr batch[BATCH];

static void die(const char *what)
{
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int listen_udp(const char *address, const char *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
	if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
		errno = EINVAL;
		die(address);
	}
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0)
		die("opening a socket");
	int on = 1, rcvbuf = RCVBUF;
	// The caches under test share their port between sockets and ask for a large buffer: so does the floor.
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
	if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0)
		die("binding");
	return fd;
}

// rearm makes the first n slots ready to receive again: receiving and answering leave lengths and moved headers behind.
static void rearm(int n)
{
	for (int i = 0; i < n; i++) {
		slots[i].iov.iov_base = slots[i].bytes;
		slots[i].iov.iov_len = QUERY_MAX;
		batch[i].msg_hdr.msg_name = &slots[i].from;
		batch[i].msg_hdr.msg_namelen = sizeof slots[i].from;
		batch[i].msg_hdr.msg_iov = &slots[i].iov;
		batch[i].msg_hdr.msg_iovlen = 1;
	}
}

// question_end returns the offset behind the one question of a datagram of len bytes, or 0 where it is cut short.
static unsigned question_end(const unsigned char *p, unsigned len)
{
	unsigned at = HEADER;
	while (at < len && p[at] != 0)
		at += p[at] + 1u;
	at += 1 + 2 + 2; // the root label, type and class
	return at <= len ? at : 0;
}

// reply turns the query of a slot into its answer and returns the answer's length, 0 for a malformed query.
static unsigned reply(unsigned char *p, unsigned len)
{
	unsigned end = question_end(p, len);
	if (end == 0)
		return 0;
	p[2] |= 0x80;         // QR; opcode and RD stay
	p[3] = 0x80;          // RA, NOERROR
	p[6] = 0, p[7] = 1;   // ANCOUNT
	p[10] = 0, p[11] = 0; // ARCOUNT: an OPT record of the query is cut off
	memcpy(p + end, answer, sizeof answer);
	return end + sizeof answer;
}

static void send_all(int fd, int n)
{
	for (int sent = 0; sent < n;) {
		int r = sendmmsg(fd, batch + sent, (unsigned)(n - sent), 0);
		if (r > 0)
			sent += r;
		else if (errno != EINTR)
			sent++; // the datagram that cannot leave must not hold back those behind it
	}
}

// answer_all turns the first n slots into answers and returns how many to send; a malformed query gets none.
static int answer_all(int n)
{
	int k = 0;
	for (int i = 0; i < n; i++) {
		unsigned len = reply(slots[i].bytes, batch[i].msg_len);
		if (len == 0)
			continue;
		slots[i].iov.iov_len = len;
		if (k != i)
			batch[k] = batch[i];
		k++;
	}
	return k;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: floor IPV4-ADDRESS PORT\n");
		return 2;
	}
	int fd = listen_udp(argv[1], argv[2]);
	rearm(BATCH);
	for (;;) {
		int n = recvmmsg(fd, batch, BATCH, MSG_WAITFORONE, NULL);
		if (n < 0 && errno != EINTR)
			die("receiving");
		send_all(fd, answer_all(n));
		if (n > 0)
			rearm(n);
	}
}
