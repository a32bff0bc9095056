// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// maxEvictTries is how often an idle session is looked for when the one found got a
// query at that moment.
const maxEvictTries = 3

// stalledFrame is when a frame that has begun counts as idle: a client sends a query at
// once, and who sends halves of many must not hold all places.
const stalledFrame = time.Second

// A refusal says why a session got no place in the table.
type refusal uint8

const (
	refusedNone refusal = iota
	refusedFull
	refusedClient
)

// A sessionTable holds the open sessions, within limits in all and per client.
type sessionTable struct {
	mu        sync.Mutex // guards all below
	limit     int        // sessions in all
	perClient int        // sessions of one address
	open      int
	clients   map[netip.Addr][]*session
}

func newSessionTable(limit, perClient int) sessionTable {
	return sessionTable{
		limit:     limit,
		perClient: perClient,
		clients:   make(map[netip.Addr][]*session),
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
	if len(t.clients[client]) >= t.perClient {
		return refusedClient
	}
	if t.open >= t.limit {
		return refusedFull
	}
	t.clients[client] = append(t.clients[client], s)
	t.open++
	return refusedNone
}

// remove frees the place of s. It does nothing when s has none.
func (t *sessionTable) remove(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(s)
}

func (t *sessionTable) removeLocked(s *session) {
	client := s.peer.Addr.Addr()
	list := t.clients[client]
	i := slices.Index(list, s)
	if i < 0 {
		return
	}
	t.open--
	if len(list) == 1 {
		delete(t.clients, client)
		return
	}
	t.clients[client] = slices.Delete(list, i, i+1)
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
	for range maxEvictTries {
		v := t.victimLocked(client, own, now)
		if v.session == nil {
			return nil
		}
		if v.ticket == ticketBusy || v.session.idle.CompareAndSwap(v.ticket, ticketShed) {
			t.removeLocked(v.session)
			return v.session
		}
	}
	return nil
}

// A victim is a session that may be closed for another.
type victim struct {
	session        *session
	ticket         int64 // that claims it; idleNot: it is at work, and needs none
	clientSessions int   // sessions of its client: one of the client with most goes first,
	since          int64 // then one that is idle, and of these the one that was so, or has been open, the longest
}

func (v *victim) before(w *victim) bool {
	switch {
	case v.clientSessions != w.clientSessions:
		return v.clientSessions > w.clientSessions
	case (v.ticket == ticketBusy) != (w.ticket == ticketBusy):
		return w.ticket == ticketBusy
	}
	return v.since < w.since
}

// choose takes a session of list in place of v, if it goes before: an idle one, with stalled
// also one that is idle with half a frame, and with atWork also one at work.
func (v *victim) choose(list []*session, atWork, stalled bool, now int64) {
	for _, s := range list {
		w := victim{session: s, ticket: s.idle.Load(), clientSessions: len(list)}
		since, idle := s.idleSince(w.ticket)
		framed := w.ticket < ticketShed
		switch {
		case idle && (!framed || stalled && now-since >= int64(stalledFrame)):
			w.since = since
		case atWork:
			w.ticket, w.since = ticketBusy, s.server.clock(s.opened)
		default:
			continue
		}
		if w.before(v) {
			*v = w
		}
	}
}

// victimLocked looks at the sessions of clients with no fewer than client has, and leaves out
// those of clients with fewer than one that it has found a session of.
func (t *sessionTable) victimLocked(client netip.Addr, own bool, now int64) (first victim) {
	mine := len(t.clients[client])
	for peer, list := range t.clients {
		n := len(list)
		if n < max(mine, first.clientSessions) || mine >= t.perClient && peer != client {
			continue
		}
		more := n > mine+1 || own
		first.choose(list, more, more || peer == client || n > mine, now)
	}
	return first
}

// A heldSession is a session that holds bytes.
type heldSession struct {
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
	holders := make([]heldSession, 0, t.open)
	clients := make(map[netip.Addr]int64, len(t.clients))
	sum := int64(0)
	for client, sessions := range t.clients {
		for _, s := range sessions {
			if h := (heldSession{s, client, s.out.heldBytes()}); h.bytes > 0 {
				holders = append(holders, h)
				clients[client] += h.bytes
				sum += h.bytes
			}
		}
	}
	if sum <= limit {
		return nil // the kernel keeps less than was counted
	}
	slices.SortFunc(holders, func(a, b heldSession) int { return cmp.Compare(b.bytes, a.bytes) })
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
	all := make([]*session, 0, t.open)
	for _, list := range t.clients {
		all = append(all, list...)
	}
	t.mu.Unlock()
	for _, s := range all {
		do(s)
	}
}

func (t *sessionTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open
}
