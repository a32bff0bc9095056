// SPDX-License-Identifier: Apache-2.0

// Package subscribe keeps the central resolver's answers right without asking again: it subscribes to the names that it asks for (DNS
// Push Notifications, RFC 8765), on one session with one server of that resolver (DNS Stateful Operations, RFC 8490).
//
//	Client.Ask        a miss: SUBSCRIBE and the question, one behind the other on the session
//	session.receive   the answer: the cache keeps it; a PUSH: it has changed; a View: no others have
//	Client.lost       the session is gone: every answer goes back to its TTL
//
// A miss goes to the session and not to the pool of all servers, so that an answer and the reports of its changes come from one view
// of the cluster. The pool is asked if there is no session, if its server does not answer within patience, or if the name cannot be
// subscribed to. Answers of the pool live by their TTL.
//
// One goroutine reads the session, and the effects of a message are complete before it reads the next. So the order of messages is the
// order of effects. But a server may write a PUSH before an answer that it made earlier. So a PUSH also marks the questions in flight
// for its object: their answers are asked for again.
//
// While the session lives, no answer of it is older than a change that it has reported. Every two seconds the server says that it
// still watches (a View). The cache keeps answers for 5 s after that. The next server may be behind the last one. It is not asked
// until its view has reached the last one's; until then answers come from the pool.
//
// The server begins each change of a name with the removal of all its records. So the agent needs no records of a PUSH: it drops the
// answer, and the next client that asks gets a new one. That is right for aliases, denials and additional records too. Records without
// a removal are those at the time of the SUBSCRIBE, and no change.
package subscribe
