// SPDX-License-Identifier: Apache-2.0

// Package resolve decides how one query is answered.
//
// # A query's journey
//
//	packet ─ AnswerFromMemory ─┬─ odd.go      malformed, other opcodes, CH, ANY: answered or dropped here
//	                           ├─ transfer.go the cluster zone as a whole: refused here, or sent by a goroutine of its own
//	                           ├─ detour.go   where the configuration has one of these, and else nothing:
//	                           │   ├─ rewrite.go another name is looked for
//	                           │   ├─ static     hosts and templates: answered, or an alias of another name
//	                           │   └─ dns64.go   an address of the NAT64: the alias of its IPv4 address
//	                           ├─ zone        a name of the cluster: answered, denied, or an alias of a name outside
//	                           ├─ cache       fresh, due, at rest or a remembered failure: patched for this client and done
//	                           ├─ cut.go      the denial of a name above: made into one of this name
//	                           └─ Resolve ─── flights.go   identical misses join; one bounded flight for all of them
//	                                           ├─ clients.go who has too many already is turned away
//	                                           ├─ route    longest suffix of the name
//	                                           └─ Asker.Ask, with a deadline; the query leaves with Worker.Flush
//
//	answer ─ flight.Answered ─┬─ judge.go  what may be kept, and for how long
//	                          ├─ keep.go   cache.Put, or what is held goes
//	                          └─ waiter.go every waiter's reply
//	                              ├─ detour.go   names are led back to the client's
//	                              └─ comeback.go no IPv6 address: the question for IPv4 addresses, in what is left of the time
//	none by StaleAfter, or a failure ─ late.go ─ an answer past its time, if one is held
//
// The order is code, in [Worker.AnswerFromMemory], [Worker.Resolve] and (*flight).Answered, and
// nowhere else.
//
// AnswerFromMemory runs on the goroutine that read the packet, takes no lock but a cache
// shard's and allocates nothing. A flight is not a goroutine but one piece of
// memory, which whoever reads from upstreams brings to its end, by the deadline at
// the latest. However many clients wait for it, they cost their spelling of the
// question and an address each. Queries upstream and replies are gathered in a
// [wire.SendBatch] and leave with the batch that brought them about.
//
// An answer that is due is given out at once and flown again in the background,
// as a flight without waiters. If that fails the answer lives as long as it would
// have and not longer.
package resolve
