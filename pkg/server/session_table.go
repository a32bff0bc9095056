// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/netip"
	"sync"
)

// shedTries is how often an idle session is looked for when the one found got a
// query at that moment.
const shedTries = 3

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

// takeIdle takes the session idle the longest out of the table, claimed so that it
// answers nothing more; nil: none is idle.
func (t *sessionTable) takeIdle() *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range shedTries {
		s, ticket := t.idleLongestLocked()
		if s == nil {
			return nil
		}
		if s.idle.CompareAndSwap(ticket, idleShed) {
			t.removeLocked(s)
			return s
		}
	}
	return nil
}

// idleLongestLocked finds the session idle the longest, with the ticket to claim it.
// It looks at every session: 20 to 40 µs for a thousand of them, paid only by a new
// connection to a full table, where an order kept up to date would cost every query.
func (t *sessionTable) idleLongestLocked() (oldest *session, ticket int64) {
	var since int64
	for s := range t.sessions {
		claim := s.idle.Load()
		if claim <= idleNot || (oldest != nil && claim >= since) {
			continue // it is not idle before its ticket: no need to look closer
		}
		if at, idle := s.idleSince(claim); idle && (oldest == nil || at < since) {
			oldest, since, ticket = s, at, claim
		}
	}
	return oldest, ticket
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
