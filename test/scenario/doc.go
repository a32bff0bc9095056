// SPDX-License-Identifier: Apache-2.0

// Package scenario plays files that say what an agent does over time, in virtual time.
//
// A file is a txtar archive: `config` is the agent's configuration, every other
// file a zone or another configuration. Its comment is the script, a command a
// line, '#' begins a remark:
//
//	upstream ADDR zone FILE [DELAY]   the upstream answers from the zone, aliases followed, after DELAY
//	upstream ADDR rcode NAME          it answers every query with this rcode
//	upstream ADDR refused|silent      nobody listens there; it never answers
//	upstream ADDR garbage             it answers bytes that are no message
//	query NAME TYPE [FLAGS]           asks and waits; FLAGS of +tcp +do +cd +norec
//	ask NAME TYPE                     asks and does not wait; `settle` does
//	settle                            waits for all that was asked
//	expect RCODE [ttl=N] [ede=N] [RDATA...]   the last reply: rcode, TTL of its first record, answers' RDATA in any order
//	within DURATION                   the last reply took no longer
//	asked ADDR N                      the upstream got N queries since it was last looked at
//	given SOURCE N                    N replies were made from the source since it was last looked at
//	elapse DURATION                   time passes
//	reload FILE                       the configuration becomes FILE
//	refused FILE                      FILE is offered as configuration, and refused
package scenario
