// SPDX-License-Identifier: Apache-2.0

// Package scenario plays files that show what an agent answers over time.
//
// A file is a txtar archive. Its comment is the script, a command a line; '#' begins a remark, and a word in single
// quotes may contain spaces. The first remark states what the file checks. `config` is the agent's configuration; `$DIR` in it
// is a folder that has a copy of each file of the archive, and `$DIR/ca.pem`, the authority of upstreams with a certificate.
//
// Time is virtual: a query is answered at once unless something waits, and `elapse` moves the clock. The kernel reports changes of
// files in real time, so a script that depends on them (manifests, hosts files, block lists, resolv.conf) begins with `realtime`.
//
// Upstreams:
//
//	upstream ADDR zone FILE [OPTION...]     the upstream answers from the zone and follows aliases
//	upstream ADDR answer FILE [OPTION...]   it answers every query with this message: records, with lines such as
//	                                        `;; authority`, `;; additional`, `;; flags aa tc`, `;; question NAME TYPE`, `;; rcode NAME`
//	upstream ADDR rcode NAME [OPTION...]    it answers every query with this rcode
//	upstream ADDR loop                      it sends each query back to the agent
//	upstream ADDR refused|silent|garbage    the port is closed; it never answers; it answers bytes that are no message
//
// Options of answers:
//
//	DURATION       the answer comes after this time
//	tc             truncated over UDP
//	tc-empty       the same, over TCP too
//	no-tcp         the TCP port is closed
//	ad, aa         the answer has this flag
//	no-opt         the answer has no OPT record
//	no-edns=RCODE  a query with an OPT record gets this rcode
//	max-size=N     no reply to a query with a larger EDNS size
//	no-ra          the answer does not offer recursion
//	uncompressed   names are in full, and those of the question in its letters
//	silent=WORD    no reply to queries for a type, or for a name and the names below it
//	lower-case     the question comes back in lower case
//	upper=RCODE    a query for a name with a letter in upper case gets this rcode, and no records
//	ignore=N       no reply to the next N queries
//	refuse=TYPE    queries for the type get REFUSED
//	before=SHAPE   a bad message (see upstreamtest.BadShapes, spaces as '-') precedes each answer
//	instead=SHAPE  a bad message takes the place of each answer
//	cert=HOST      it speaks TLS and HTTPS with a certificate for the host
//
// Queries:
//
//	query NAME TYPE [FLAG...]   sends and waits
//	ask NAME TYPE [FLAG...]     sends and does not wait
//	settle                      waits for the replies to all `ask`s; the last one is then the last reply
//	packet HEX [FLAG...]        sends these bytes and waits
//
// Flags are +tcp +do +cd +ad +z +norec +noedns +explain, +size=N, +version=N, +class=CH, +opcode=N, +subnet=PREFIX, +cookie=HEX,
// +option=CODE:HEX, +from=ADDR (10.0.0.9 unless given) and +names=N: N queries, for 1-NAME,
// 2-NAME and so on, one after the other with `query` and at once with `ask`.
//
// Checks (a number N may be a range, such as 2..4):
//
//	expect RCODE [KEY=VALUE...] [RDATA...]  the last reply has this rcode and these answers, in any order (those
//	                                        of types without a name as hex:DATA). Keys: ttl (of the
//	                                        first record), ede (code or none), reason (its text), flags (all of aa,tc,rd,ra,ad,cd), answers
//	                                        (their number, in place of RDATA), authority, additional (numbers of records without OPT), opt (yes, no), options (codes, or
//	                                        none), explain (text of option 65305), size (most bytes), question (its exact letters), owner (of the first record)
//	expect none                             there was no reply
//	await RCODE ...                         repeats the last query until `expect` holds, for 10 s at most
//	within DURATION                         the last reply took no longer
//	replies RCODE N                         N of the replies that `settle` waited for have this rcode
//	rotates N                               the last query, repeated, begins with N different records
//	asked ADDR N [tcp|udp|tls|https]        the upstream got N queries since the last `asked`
//	sent ADDR KEY=VALUE...                  its last query has these: network, name, type, flags, size (of EDNS), do, options,
//	                                        subnet, case (mixed or lower)
//	server ADDR STATE [LIMITATION...]       /status has this state of it, and these limitations
//	given SOURCE N                          N replies came from the source since the last `given` of it
//	shed N                                  N queries were shed since the last `shed`
//	logged N                                the log has N more queries than at the last `logged`
//
// Events:
//
//	elapse DURATION   time passes
//	reload FILE       the configuration becomes FILE
//	refused FILE      FILE is offered as configuration, and refused
//	restart           the agent stops and another one starts, with the configuration in use
//	write FILE NAME   the file NAME in `$DIR` becomes FILE
//	remove NAME       the file NAME in `$DIR` is removed
//
// With SOAK=1 the scenarios of unbound's own tests are played against an agent too. unboundOptions has the keys that stand for
// unbound's options, and unboundOutcomes what differs, and why. An upstream of `stub-zone` follows referrals, so that many
// scenarios of a recursive resolver fit an agent.
package scenario
