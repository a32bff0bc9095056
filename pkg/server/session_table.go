// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// shedTries is how often an idle session is looked for when the one found got a
// query at that moment.
const shedTries = 3

// stalledFrame is when a frame that has begun counts as idle: a client sends a query at
// once, and who sends halves of many must not hold all places.
const stalledFrame = time.Second

// A refusal says why a session got no place in the table.
type refusal uint8

const (
	refusedNot refusal = iota
	refusedFull
	refusedClient
)

// A sessionTable holds the open sessions, within limits in all and per client.
type sessionTable struct {
	mu        sync.Mutex // guards all below
	limit     int        // sessions in all
	perClient int        // sessions of one address
	sessions  map[*session]struct{}
	clients   map[netip.Addr]int
}

func newSessionTable(limit, perClient int) sessionTable {
	return sessionTable{
		limit:     limit,
		perClient: perClient,
		sessions:  make(map[*session]struct{}),
		clients:   make(map[netip.Addr]int),
	}
}

// setLimits changes the limits. Sessions above a new one stay.
func (t *sessionTable) setLimits(limit, perClient int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit, t.perClient = limit, perClient
}

// add gives s a place if there is one. The limit of the client comes first: a
// client at its limit must not cost others their idle sessions.
func (t *sessionTable) add(s *session) refusal {
	client := s.peer.Addr.Addr()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.clients[client] >= t.perClient {
		return refusedClient
	}
	if len(t.sessions) >= t.limit {
		return refusedFull
	}
	t.sessions[s] = struct{}{}
	t.clients[client]++
	return refusedNot
}

// remove frees the place of s. It does nothing when s has none.
func (t *sessionTable) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(s)
}

func (t *sessionTable) removeLocked(s *session) {
	if _, ok := t.sessions[s]; !ok {
		return
	}
	delete(t.sessions, s)
	client := s.peer.Addr.Addr()
	if t.clients[client]--; t.clients[client] == 0 {
		delete(t.clients, client)
	}
}

// evict takes one session out of a full table for one of client, claimed so that it
// answers nothing more; nil: the new one gets no place. In this order:
//
//   - The client with most sessions loses the one that has been idle the longest, or its
//     oldest one, if that leaves it more than client has, or in any case with own. A frame
//     is idle after stalledFrame.
//   - A client that has as many, or client itself, loses the one that has been idle the
//     longest.
//
// Whether clients with fewer sessions are idle is of no importance: a client that keeps
// many at work must not cost them theirs. A client that has all that it may have loses one
// of its own.
func (t *sessionTable) evict(client netip.Addr, own bool, now int64) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range shedTries {
		v := t.victimLocked(client, own, now)
		if v.session == nil {
			return nil
		}
		if v.ticket == idleNot || v.session.idle.CompareAndSwap(v.ticket, idleShed) {
			t.removeLocked(v.session)
			return v.session
		}
	}
	return nil
}

// A victim is a session that may be closed for another.
type victim struct {
	session *session
	ticket  int64 // that claims it; idleNot: it is at work, and needs none
	rank    int   // one of the lowest rank goes first,
	clients int   // then one of the client with most,
	since   int64 // then one that is idle, and of these the one that was so, or has been open, the longest
}

func (v *victim) before(w *victim) bool {
	switch {
	case w.session == nil || v.rank != w.rank:
		return w.session == nil || v.rank < w.rank
	case v.clients != w.clients:
		return v.clients > w.clients
	case (v.ticket == idleNot) != (w.ticket == idleNot):
		return w.ticket == idleNot
	}
	return v.since < w.since
}

// victimLocked looks at every session: some 50 µs for a thousand of them, paid only by a
// new connection to a full table, where an order kept up to date would cost every query.
func (t *sessionTable) victimLocked(client netip.Addr, own bool, now int64) (first victim) {
	mine := t.clients[client]
	for s := range t.sessions {
		peer := s.peer.Addr.Addr()
		if mine >= t.perClient && peer != client {
			continue
		}
		v := victim{session: s, ticket: s.idle.Load(), clients: t.clients[peer]}
		since, idle := s.idleSince(v.ticket)
		framed := v.ticket < idleShed
		idle = idle && (!framed || now-since >= int64(stalledFrame))
		switch more := v.clients > mine+1 || own; {
		case more && idle:
			v.since = since
		case more:
			v.ticket, v.since = idleNot, s.server.clock(s.opened)
		case idle && (peer == client || v.clients > mine || v.clients == mine && !framed):
			v.rank, v.since = 1, since
		default:
			continue
		}
		if v.before(&first) {
			first = v
		}
	}
	return first
}

// A holder is a session that holds bytes.
type holder struct {
	session *session
	client  netip.Addr
	bytes   int64
}

// largest is what to close where all hold more than limit, so that they hold target at
// most: of the client that holds most the session that does, again and again. A large
// answer to a client that reads must not go for those who hold many smaller ones.
func (t *sessionTable) largest(limit, target int64) (list []*session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	holders := make([]holder, 0, len(t.sessions))
	clients := make(map[netip.Addr]int64, len(t.clients))
	sum := int64(0)
	for s := range t.sessions {
		if h := (holder{s, s.peer.Addr.Addr(), s.out.holds()}); h.bytes > 0 {
			holders = append(holders, h)
			clients[h.client] += h.bytes
			sum += h.bytes
		}
	}
	if sum <= limit {
		return nil // the kernel keeps less than was counted
	}
	slices.SortFunc(holders, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	for sum > target {
		at := 0
		for i := range holders {
			if clients[holders[i].client] > clients[holders[at].client] {
				at = i
			}
		}
		h := holders[at]
		list = append(list, h.session)
		sum -= h.bytes
		clients[h.client] -= h.bytes
		holders = slices.Delete(holders, at, at+1)
	}
	return list
}

// each calls do for every session, without the lock.
func (t *sessionTable) each(do func(*session)) {
	t.mu.Lock()
	all := make([]*session, 0, len(t.sessions))
	for s := range t.sessions {
		all = append(all, s)
	}
	t.mu.Unlock()
	for _, s := range all {
		do(s)
	}
}

func (t *sessionTable) open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}
