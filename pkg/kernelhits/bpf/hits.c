// SPDX-License-Identifier: Apache-2.0

// Answers DNS queries on the host end of a pod's veth, from ready answers that the agent wrote. What it does not know it leaves
// untouched to the agent. docs/adr/0018 has the reasons; pkg/kernelhits/table.go writes the answers.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NEXT (-1) // TCX_NEXT, and TC_ACT_UNSPEC of a filter: the packet goes on
#define DROP 2    // TC_ACT_SHOT

#define MAX_NAME 128    // bytes of a name in wire form
#define MAX_RECORDS 32  // records of an answer
#define MAX_DATA 702    // bytes of an answer after the question
#define MAX_SLOTS 8192  // of versions
#define MAX_COUNTED 8192 // answers, as many as there are counters
#define OPT_LEN 11      // an OPT record without options
#define EDE_ROOM 6      // the agent reserves them for an Extended DNS Error
#define MAX_HELD 8      // addresses that an interface holds
#define DISPUTE 60000000000ULL // ns for which a disputed address gets no answers
#define WRITES 256      // counters of changes of answers, see answer_hit

// Bits of a key's variant, which are the properties of a query that change the reply.
#define VARIANT_AD 1
#define VARIANT_EDNS 2
#define VARIANT_DO 4

struct key {
	__u8 name[MAX_NAME]; // canonical wire form, then zeros
	__be16 type;
	__u8 variant;
	__u8 name_len;
};

struct answer {
	__u64 until;      // end of its use, as all times in ns of CLOCK_BOOTTIME
	__u64 base;       // when the TTLs were as in data
	__u32 epoch;      // of the agent's state
	__u32 slot[2];    // the versions that must be
	__u32 version[2]; // these
	__u32 index;      // of its counters
	__be16 flags;     // bytes 3 and 4 of the header
	__be16 counts[3]; // of records in the last three sections
	__u16 len;        // bytes of data
	__u8 zone;        // it is of the zone, which may be changing
	__u8 searched;    // it denies a name of the cluster domain
	__u8 ttls;        // count of ttl
	__u8 counts_down; // the TTLs do
	__u8 rotate_first, rotate_count, rotate_size; // the TTLs whose records are an address set, and the bytes of an address
	__u8 rotate_near; // so many of the set are in the node's topology zone: they come first
	__u16 ttl[MAX_RECORDS]; // offsets of the TTL fields in data
	__u8 data[MAX_DATA];    // what follows the question
};

// An address, IPv4 mapped to IPv6.
struct address {
	__be32 word[4];
};

struct destination {
	struct address addr;
	__be16 port;
	__u16 family; // 4 or 6
};

struct client_key {
	__u32 ifindex;
	__u32 family; // 4 or 6
};

// A client is the pod behind an interface: the address that the agent answered last.
struct client {
	__u64 answered; // by the agent
	__u64 passed;   // a query went on, so that the agent answers it
	__u64 seen;     // a DNS query of any kind, at about this time, see control.clock
	__u64 asked;    // a query to the agent, too
	__u64 hits, denied, searched, bytes;
	struct address addr;
	__u64 held; // addresses in holders
};

// A holder is the interface on which the agent has answered an address first. Pods on a bridge can take the address and the MAC of
// another one, and the reply then leaves to them: no other interface gets answers under the address, and for a while the holder
// gets none either, because it may be the forger.
struct holder {
	__u64 disputed; // when the agent answered the address on another interface; 0: never
	__u32 ifindex;
	__u32 unused;
};

// A name is a question of a pod, see name_permit of control.
struct name_key {
	__u64 hash; // of the name
	__u32 ifindex;
	__be16 type;
	__u16 unused;
};

struct control {
	__u64 heartbeat;   // time of the last one
	__u64 clock;       // about now
	__u64 lease;       // ns
	__u64 permit;      // ns
	__u64 name_permit; // ns; 0: the permits of names do not matter
	__u64 names_since; // those that are older do not count
	__u32 enabled;
	__u32 epoch;
	__u32 changing;    // changes of zones under way
	__u32 port;        // of the agent's sockets
	__u32 writes[WRITES]; // changes of answers, begun and ended, by a hash of the name
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_COUNTED);
	__type(key, struct key);
	__type(value, struct answer);
} answers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * MAX_COUNTED);
	__type(key, __u32);
	__type(value, __u64);
} hits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_SLOTS);
	__type(key, __u32);
	__type(value, __u64); // in memory, values of an array are 8 bytes apart
} versions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} controls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 8192);
	__type(key, struct client_key);
	__type(value, struct client);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct holder);
} holders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct name_key);
	__type(value, __u64); // when the agent last answered it
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct destination);
	__type(value, __u8);
} destinations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384); // each address has one for each CPU
	__type(key, __u64);
	__type(value, __u8);
} sockets SEC(".maps");

// A datagram, to sum it up, or a name.
struct scratch {
	__u8 bytes[256 + 8]; // any that a mask of 0xff bounds, and zeros
	__u32 len;           // of the name
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

#define HASH 0x9e3779b97f4a7c15ULL
#define LOAD(x) (*(volatile typeof(x) *)&(x))

static __always_inline struct control *control(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&controls, &zero);
}

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline int same(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

// last_of returns the number of the last byte of so many. The compiler does not know it: the verifier of Linux 6.1 must see both
// bounds of a length in one register, right before the call.
static __always_inline __u64 last_of(__u64 len)
{
	__u64 last = len - 1;

	asm volatile("" : "+r"(last));
	return last;
}

// bounded returns x, which a check has bounded by the mask before. Where the compiler keeps x on the stack, the verifier of Linux 6.1 knows
// the bound of the copy only that was checked.
static __always_inline __u64 bounded(__u64 x, __u64 mask)
{
	asm volatile("" : "+r"(x));
	return x & mask;
}

// A packet is a UDP datagram over IPv4 or IPv6 without options.
struct packet {
	__u32 family;
	__u32 l4;       // offset of the UDP header
	__u32 udp_len;  // its length field
	struct address from, to;
};

static __always_inline void map4(struct address *a, __be32 v4)
{
	a->word[0] = a->word[1] = 0;
	a->word[2] = bpf_htonl(0xffff);
	a->word[3] = v4;
}

// read_packet finds the UDP header. It returns 0 for a datagram whose lengths agree.
static __always_inline int read_packet(struct __sk_buff *skb, struct packet *p, struct udphdr **udp)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return -1;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_UDP || ip->ihl != 5 || ip->version != 4)
			return -1;
		if ((ip->frag_off & bpf_htons(0x3fff)) != 0 || bpf_ntohs(ip->tot_len) + ETH_HLEN != skb->len)
			return -1;
		p->family = 4;
		p->l4 = ETH_HLEN + sizeof(*ip);
		map4(&p->from, ip->saddr);
		map4(&p->to, ip->daddr);
		*udp = (void *)(ip + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP || ip->version != 6)
			return -1;
		if (bpf_ntohs(ip->payload_len) + ETH_HLEN + sizeof(*ip) != skb->len)
			return -1;
		p->family = 6;
		p->l4 = ETH_HLEN + sizeof(*ip);
		__builtin_memcpy(&p->from, &ip->saddr, sizeof(p->from));
		__builtin_memcpy(&p->to, &ip->daddr, sizeof(p->to));
		*udp = (void *)(ip + 1);
	} else {
		return -1;
	}
	if ((void *)(*udp + 1) > end)
		return -1;
	p->udp_len = bpf_ntohs((*udp)->len);
	return p->udp_len == skb->len - p->l4 ? 0 : -1;
}

// pseudo_sum is the checksum of the pseudo header with that UDP length, not folded.
static __always_inline __u64 pseudo_sum(const struct packet *p, __u32 len)
{
	__u64 sum = bpf_htons(IPPROTO_UDP) + (__u64)bpf_htons(len);

	sum += (__u64)p->from.word[3] + p->to.word[3];
	if (p->family == 6)
		sum += (__u64)p->from.word[0] + p->from.word[1] + p->from.word[2] + p->to.word[0] + p->to.word[1] + p->to.word[2];
	return sum;
}

// lower converts the capital letters of eight bytes.
static __always_inline __u64 lower(__u64 x)
{
	const __u64 ones = 0x0101010101010101ULL;
	__u64 seven = x & (0x7f * ones);
	__u64 capital = (seven + (0x80 - 'A') * ones) & ~(seven + (0x7f - 'Z') * ones) & ~x & (0x80 * ones);

	return x | capital >> 2;
}

#define CHECKSUM_WRONG -1
#define CHECKSUM_PARTIAL 0 // the sender's kernel leaves it to a device, which a veth is not
#define CHECKSUM_WHOLE 1
#define CHECKSUM_NONE 2

// checksum_kind tells the kind of the datagram's checksum. A program cannot read skb->ip_summed. But a partial checksum is that
// of the pseudo header alone, and is then no valid whole one. The agent decides about those few that are both.
static __always_inline int checksum_kind(struct __sk_buff *skb, const struct packet *p, __be16 check)
{
	__u32 zero = 0, len = p->udp_len;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	__u64 pseudo = pseudo_sum(p, len);
	__s64 sum;

	if (check == 0)
		return p->family == 4 ? CHECKSUM_NONE : CHECKSUM_WRONG;
	if (!s || len - 1 >= 8 + 12 + MAX_NAME + 4 + OPT_LEN)
		return CHECKSUM_WRONG;
	if (bpf_skb_load_bytes(skb, p->l4, s->bytes, bounded(len - 1, 0xff) + 1) != 0)
		return CHECKSUM_WRONG;
	__builtin_memset(s->bytes + bounded(len, 0xff), 0, 4);
	sum = bpf_csum_diff(0, 0, (__be32 *)s->bytes, bounded(len + 3, 0xfc), fold(pseudo));
	int whole = fold(sum & 0xffffffff) == 0xffff, partial = check == fold(pseudo);
	if (whole == partial)
		return CHECKSUM_WRONG;
	return whole ? CHECKSUM_WHOLE : CHECKSUM_PARTIAL;
}

// mark sets a time to about now. Most calls change nothing: other CPUs read the memory, too.
static __always_inline void mark(__u64 *time, struct control *c)
{
	__u64 clock = LOAD(c->clock);

	if (LOAD(*time) != clock)
		*time = clock;
}

// permitted reports whether the agent has answered this pod recently. Once half of that time is over one query goes on, so that
// the agent's answer renews it.
static __always_inline int permitted(struct client *client, const struct packet *p, struct control *c, __u64 now)
{
	__u64 age;

	if (!same(&client->addr, &p->from))
		return 0;
	age = now - LOAD(client->answered);
	if (client->answered == 0 || (__s64)age > (__s64)LOAD(c->permit))
		return 0;
	if ((__s64)age > (__s64)(LOAD(c->permit) >> 1) && now - LOAD(client->passed) > 100000000) {
		client->passed = now;
		return 0;
	}
	return 1;
}

// name_permitted reports whether the agent itself has given this very answer to the pod recently: a policy engine that learns names
// from the replies that it sees knows it then. There is nothing to learn from a denial.
static __always_inline int name_permitted(const struct name_key *k, const struct answer *a, struct control *c, __u64 now)
{
	__u64 permit = LOAD(c->name_permit), *answered, at;

	if (permit == 0 || a->counts[0] == 0)
		return 1;
	answered = bpf_map_lookup_elem(&names, k);
	if (!answered)
		return 0;
	at = LOAD(*answered);
	return at >= a->base && at > LOAD(c->names_since) && (__s64)(now - at) <= (__s64)permit;
}

// permit_name takes the question of the agent's reply. It hashes the name as answer_hit does. A name that finds no room is left to
// the agent.
static __always_inline void permit_name(struct __sk_buff *skb, const struct packet *p, __u64 now)
{
	struct name_key k = {.ifindex = skb->ifindex};
	__u32 zero = 0, len = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratches, &zero);
	__u8 header[12];
	__be16 question[2];

	if (!s || bpf_skb_load_bytes(skb, p->l4 + 8, header, sizeof(header)) != 0)
		return;
	if (!(header[2] & 0x80) || header[2] & 2 || header[4] != 0 || header[5] != 1) // a whole reply to one question
		return;
	if (header[6] == 0 && header[7] == 0) // no answer
		return;
	__builtin_memset(s->bytes, 0, MAX_NAME);
	__u64 last = p->udp_len - 8 - 12 - 1;
	if (last >= MAX_NAME)
		last = MAX_NAME - 1;
	if (bpf_skb_load_bytes(skb, p->l4 + 8 + 12, s->bytes, bounded(last, MAX_NAME - 1) + 1) != 0)
		return;
	for (__u32 i = 0; i < MAX_NAME / 2; i++) {
		if (len >= MAX_NAME)
			return;
		__u8 label = s->bytes[bounded(len, MAX_NAME - 1)];
		len += 1 + label;
		if (label == 0)
			break;
	}
	s->len = len; // the verifier does not know the value then: it would go on for each length apart
	len = LOAD(s->len);
	if (len > MAX_NAME || bpf_skb_load_bytes(skb, p->l4 + 8 + 12 + len, question, sizeof(question)) != 0)
		return;
	for (__u32 i = 0; i < MAX_NAME / 8; i++) {
		if (8 * i >= len)
			break;
		__u64 word = ((__u64 *)s->bytes)[i];
		__u32 left = len - 8 * i;

		if (left < 8)
			word &= (1ULL << (8 * left & 63)) - 1;
		k.hash = (k.hash ^ lower(word)) * HASH;
	}
	k.type = question[0];
	bpf_map_update_elem(&names, &k, &now, BPF_ANY);
}

// current reports whether the answer is still the agent's.
static __always_inline int current(struct answer *a, struct control *c, __u64 now)
{
	if (now >= a->until || a->epoch != LOAD(c->epoch) || (a->zone && LOAD(c->changing)))
		return 0;
	for (int i = 0; i < 2; i++) {
		__u32 slot = a->slot[i];
		__u64 *version = bpf_map_lookup_elem(&versions, &slot);

		if (!version || (__u32)LOAD(*version) != a->version[i])
			return 0;
	}
	return 1;
}

// copy copies an address.
static __always_inline void copy(__u8 *to, const __u8 *from, int size)
{
	for (int i = 0; i < size; i++)
		to[i] = from[i];
}

// count_down reduces the TTLs of the answer, which begins at the offset.
static __always_inline void count_down(struct __sk_buff *skb, const struct answer *a, __u32 at, __u32 age)
{
	void *end = (void *)(long)skb->data_end;
	__u8 *data = (void *)(long)skb->data;

	for (__u32 i = 0; i < MAX_RECORDS; i++) {
		__u32 off = a->ttl[i] & 0x3ff;
		__be32 *field = (void *)(data + at + off);

		if (i >= a->ttls || (void *)(field + 1) > end)
			break;
		*field = bpf_htonl(bpf_ntohl(*field) - age); // the answer ends before its lowest TTL
	}
}

// rotate moves the addresses of the set in the answer, which begins at the offset, by so many places: those that are near and the
// others apart.
static __always_inline void rotate(struct __sk_buff *skb, const struct answer *a, __u32 at, __u32 turn)
{
	void *end = (void *)(long)skb->data_end;
	__u8 *data = (void *)(long)skb->data;
	__u32 first = a->rotate_first, count = a->rotate_count, near = a->rotate_near;

	for (__u32 i = 0; i < MAX_RECORDS; i++) {
		if (i >= count)
			break;
		__u32 off = a->ttl[(first + i) & (MAX_RECORDS - 1)] & 0x3ff;
		__u32 far = (near - 1 - i) >> 31, from = far * near, size = near + far * (count - 2 * near); // without branches
		__u32 of = a->ttl[(first + from + (turn + i - from) % size) & (MAX_RECORDS - 1)];
		__u8 *field = data + at + off + 6;

		if (of > MAX_DATA - 6 - 16)
			of = MAX_DATA - 6 - 16;
		if ((void *)(field + 4) > end)
			break;
		copy(field, a->data + of + 6, 4);
		if (a->rotate_size == 4)
			continue;
		if ((void *)(field + 16) > end)
			break;
		copy(field + 4, a->data + of + 6 + 4, 12);
	}
}

SEC("tc")
int answer_hit(struct __sk_buff *skb)
{
	struct packet p;
	struct udphdr *udp;
	struct control *c = control();

	if (!c || read_packet(skb, &p, &udp) != 0)
		return NEXT;
	if (udp->dest != bpf_htons(53) && udp->dest != bpf_htons(c->port))
		return NEXT;
	struct client_key at = {.ifindex = skb->ifindex, .family = p.family};
	struct client *client = bpf_map_lookup_elem(&clients, &at);
	if (!client)
		return NEXT;
	mark(&client->seen, c);
	if (udp->source == 0) // no reply can be sent
		return NEXT;
	void *end = (void *)(long)skb->data_end;
	__u8 *dns = (void *)(udp + 1);

	if (skb->vlan_present || skb->gso_size || skb->pkt_type == 1 || skb->pkt_type == 2)
		return NEXT; // 1 and 2: broadcast, multicast
	if ((void *)(dns + 12) > end || p.udp_len > 8 + 12 + MAX_NAME + 4 + OPT_LEN)
		return NEXT;
	// RD, perhaps AD, nothing else; one question, perhaps an additional record.
	if (dns[2] != 1 || (dns[3] & ~0x20) != 0 || *(__be16 *)(dns + 4) != bpf_htons(1) || *(__be32 *)(dns + 6) != 0)
		return NEXT;
	if (dns[10] != 0 || dns[11] > 1)
		return NEXT;
	struct destination to = {.addr = p.to, .port = udp->dest, .family = p.family};
	if (!bpf_map_lookup_elem(&destinations, &to))
		return NEXT;
	mark(&client->asked, c);
	if (!LOAD(c->enabled))
		return NEXT;

	// The question
	struct key k = {};
	__u32 opt = dns[11] ? OPT_LEN : 0, limit = 512;
	__u32 name_len = p.udp_len - 8 - 12 - 4 - opt; // very large if there is no room for a name

	k.variant = dns[3] & 0x20 ? VARIANT_AD : 0;
	__u8 record[OPT_LEN];
	if (opt) {
		if (bpf_skb_load_bytes(skb, p.l4 + 8 + 12 + name_len + 4, record, OPT_LEN) != 0)
			return NEXT;
		if (record[0] != 0 || record[1] != 0 || record[2] != 41 || record[5] != 0 || record[6] != 0 || (record[7] & 0x7f) != 0 ||
		    record[8] != 0 || record[9] != 0 || record[10] != 0)
			return NEXT;
		__u32 size = record[3] << 8 | record[4];
		if (size > limit)
			limit = size;
		k.variant |= VARIANT_EDNS | (record[7] ? VARIANT_DO : 0);
	}
	__be16 question[2];
	if (bpf_skb_load_bytes(skb, p.l4 + 8 + 12 + name_len, question, 4) != 0 || question[1] != bpf_htons(1))
		return NEXT;
	if (name_len - 1 >= MAX_NAME || bpf_skb_load_bytes(skb, p.l4 + 8 + 12, k.name, bounded(name_len - 1, MAX_NAME - 1) + 1) != 0)
		return NEXT;
	__u64 *words = (__u64 *)k.name, hash = 0;
	for (__u32 i = 0; i < MAX_NAME / 8; i++) {
		if (8 * i >= name_len)
			break;
		words[i] = lower(words[i]);
		hash = (hash ^ words[i]) * HASH;
	}
	k.type = question[0];
	k.name_len = name_len;

	// The kernel may use the memory of an answer that the agent changes for another one at once. So no change may be under way now,
	// and none may begin until the answer is copied.
	__u32 *writes = &c->writes[hash >> 56], begun = LOAD(*writes);
	__u64 now = bpf_ktime_get_boot_ns(); // also a barrier after the load of begun
	if (begun & 1 || (__s64)(now - LOAD(c->heartbeat)) > (__s64)LOAD(c->lease))
		return NEXT;
	struct answer *a = bpf_map_lookup_elem(&answers, &k);
	if (!a)
		return NEXT;
	__u32 len = a->len;
	if (12 + name_len + 4 + len + (opt ? EDE_ROOM : 0) > limit)
		return NEXT;
	struct name_key name = {.hash = hash, .ifindex = skb->ifindex, .type = k.type};
	if (!permitted(client, &p, c, now) || !current(a, c, now) || !name_permitted(&name, a, c, now))
		return NEXT;

	// The headers: the agent's kernel would drop a packet with a wrong checksum.
	void *data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN + sizeof(struct ipv6hdr) > end)
		return NEXT;
	if (p.family == 4) {
		__be16 *half = (__be16 *)(data + ETH_HLEN);
		__u64 sum = 0;

		for (int i = 0; i < 10; i++)
			sum += half[i];
		if (fold(sum) != 0xffff)
			return NEXT;
	}
	udp = (struct udphdr *)(data + (p.l4 & 0x7f));
	if ((void *)(udp + 1) > end)
		return NEXT;
	int kind = checksum_kind(skb, &p, udp->check);
	if (kind == CHECKSUM_WRONG || (kind == CHECKSUM_WHOLE && p.family == 6))
		return NEXT;

	__u32 index = 2 * a->index + (p.family == 6);
	__u64 *count = bpf_map_lookup_elem(&hits, &index);
	if (!count)
		return NEXT;
	__u64 turn = __sync_fetch_and_add(count, 1);

	// The answer. If it changed meanwhile the query is restored.
	__u32 answer_at = p.l4 + 8 + 12 + name_len + 4;
	__be16 flags = a->flags, counts[3] = {a->counts[0], a->counts[1], a->counts[2]};
	__u8 searched = a->searched;
	if (bpf_skb_change_tail(skb, answer_at + len, 0) != 0)
		return NEXT;
	__u64 last = last_of(len);
	if (last < MAX_DATA && bpf_skb_store_bytes(skb, answer_at, a->data, last + 1, 0) != 0)
		return DROP;
	if (a->counts_down)
		count_down(skb, a, answer_at & 0xff, (now - a->base) / 1000000000);
	if (a->rotate_count)
		rotate(skb, a, answer_at & 0xff, turn);
	__u64 before = __sync_fetch_and_add(&client->hits, 1); // also a barrier before the load of the changes
	asm volatile("" : : "r"(before)); // on arm64 only with a use of the result
	if (LOAD(*writes) != begun) {
		if (bpf_skb_change_tail(skb, answer_at + opt, 0) != 0)
			return DROP;
		if (opt && bpf_skb_store_bytes(skb, answer_at, record, OPT_LEN, 0) != 0)
			return DROP;
		return NEXT;
	}

	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	if (data + ETH_HLEN + sizeof(struct ipv6hdr) + 8 + 12 > end)
		return DROP;
	struct ethhdr *eth = (void *)data;
	__u8 mac[ETH_ALEN];
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	__u32 udp_len = 8 + 12 + name_len + 4 + len;
	if (p.family == 4) {
		struct iphdr *ip = (void *)(eth + 1);
		__be16 *half = (__be16 *)ip;
		__u64 sum = 0;
		__be32 addr = ip->saddr;

		ip->saddr = ip->daddr;
		ip->daddr = addr;
		ip->tos = 0;
		ip->tot_len = bpf_htons(sizeof(*ip) + udp_len);
		ip->id = 0;
		ip->frag_off = bpf_htons(0x4000); // DF
		ip->ttl = 64;
		ip->check = 0;
		for (int i = 0; i < 10; i++)
			sum += half[i];
		ip->check = ~fold(sum);
	} else {
		struct ipv6hdr *ip = (void *)(eth + 1);

		__builtin_memcpy(&ip->saddr, &p.to, sizeof(p.to));
		__builtin_memcpy(&ip->daddr, &p.from, sizeof(p.from));
		*(__be32 *)ip = bpf_htonl(6 << 28);
		ip->payload_len = bpf_htons(udp_len);
		ip->hop_limit = 64;
	}
	udp = (struct udphdr *)(data + (p.l4 & 0x7f));
	dns = (void *)(udp + 1);
	if ((void *)(dns + 12) > end)
		return DROP;
	__be16 port = udp->source;
	udp->source = udp->dest;
	udp->dest = port;
	udp->len = bpf_htons(udp_len);
	udp->check = kind == CHECKSUM_PARTIAL ? fold(pseudo_sum(&p, udp_len)) : 0; // 0: none, which IPv4 allows
	*(__be16 *)(dns + 2) = flags;
	*(__be16 *)(dns + 6) = counts[0];
	*(__be16 *)(dns + 8) = counts[1];
	*(__be16 *)(dns + 10) = counts[2];
	__sync_fetch_and_add(&client->bytes, 12 + name_len + 4 + len); // other CPUs count, too
	// What counts as denied and as searched is decided as in pods.Counts.Count.
	if ((flags & bpf_htons(0xf)) == bpf_htons(3)) {
		__sync_fetch_and_add(&client->denied, 1);
		__sync_fetch_and_add(&client->searched, searched);
	}
	bpf_skb_change_type(skb, 0); // PACKET_HOST: a bridge's packets are for another host at its port
	return bpf_redirect_peer(skb->ifindex, 0);
}

// permit_client sees the agent's answers to a pod: the node's rules and policies let its query pass.
SEC("tc")
int permit_client(struct __sk_buff *skb)
{
	struct packet p;
	struct udphdr *udp;
	struct control *c = control();

	if (!c || read_packet(skb, &p, &udp) != 0)
		return NEXT;
	if (udp->source != bpf_htons(53) && udp->source != bpf_htons(c->port))
		return NEXT;
	__u64 cookie = bpf_get_socket_cookie(skb);
	if (!bpf_map_lookup_elem(&sockets, &cookie))
		return NEXT;
	struct client_key at = {.ifindex = skb->ifindex, .family = p.family};
	struct client *client = bpf_map_lookup_elem(&clients, &at);
	if (!client)
		return NEXT;
	__u64 now = bpf_ktime_get_boot_ns();
	struct holder *holder = bpf_map_lookup_elem(&holders, &p.to);
	if (!holder) {
		struct holder first = {.ifindex = skb->ifindex};
		if (client->held >= MAX_HELD || bpf_map_update_elem(&holders, &p.to, &first, BPF_NOEXIST) != 0)
			return NEXT;
		__sync_fetch_and_add(&client->held, 1);
	} else if (holder->ifindex != skb->ifindex) {
		at.ifindex = holder->ifindex;
		client = bpf_map_lookup_elem(&clients, &at);
		holder->disputed = now;
		if (client && same(&client->addr, &p.to))
			client->answered = 0;
		return NEXT;
	} else if (holder->disputed && now - holder->disputed < DISPUTE) {
		return NEXT;
	}
	if (!same(&client->addr, &p.to))
		client->addr = p.to;
	client->answered = now;
	if (LOAD(c->name_permit))
		permit_name(skb, &p, now);
	return NEXT;
}

char _license[] SEC("license") = "Apache-2.0";
