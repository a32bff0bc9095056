// SPDX-License-Identifier: Apache-2.0

package push

import (
	"bytes"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A Session is that of one client.
type Session struct {
	server *Server
	to     Conn
	client netip.Addr
	turn   int
	push   sync.Mutex // orders the PUSH messages: later ones have later records; locked before server.mu

	// server.mu guards the rest.
	established   bool // a request was answered with NOERROR
	ended         bool
	subscriptions map[uint16]subscription
	marked        map[*name]struct{} // names to push
	full          time.Time          // until when it gets no memory: who asks again at once must not make the server search again
	waits         time.Time          // since when marked names wait for the client to read; zero: they do not
}

// A subscription is the value of its ID.
type subscription struct {
	name  *name
	typ   uint16
	class uint16
}

// NewSession returns the session of a client, nil if it may not have one. It is open until Close.
func (s *Server) NewSession(client netip.Addr, to Conn) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cfg.Permits(client) { // with the lock: see Reconfigured
		return nil
	}
	session := &Session{server: s, to: to, client: client, subscriptions: map[uint16]subscription{}}
	for i := range s.sessions {
		if len(s.sessions[i]) < len(s.sessions[session.turn]) {
			session.turn = i
		}
	}
	s.sessions[session.turn][session] = struct{}{}
	s.open.Add(1)
	return session
}

// Close ends the session. Its connection has ended.
func (c *Session) Close() {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.server.dropLocked(c)
}

// Delinquent returns how long the client may have no operation until the connection is to be aborted; 0: it has subscriptions.
func (c *Session) Delinquent() time.Duration {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	if len(c.subscriptions) > 0 {
		return 0
	}
	return delinquent
}

// Handle handles a message with the opcode of DNS stateful operations. active reports whether it was more than a Keepalive. With a
// message for which RFC 8490 and RFC 8765 demand it, Handle aborts the connection.
func (c *Session) Handle(msg []byte) (active bool) {
	if c.hasEnded() {
		return false // RFC 8490 section 6.6.1.1: what arrives after the Retry Delay is ignored
	}
	m, err := dso.Parse(msg)
	switch {
	case errors.Is(err, dso.ErrCounts) && m.Kind == dso.Request:
		c.respond(&m, wire.RcodeFormErr, badDelay)
	case err != nil, !c.accept(&m):
		c.abort(&c.server.stats.Ended.Protocol)
	}
	return err == nil && m.Primary().Type != dso.TypeKeepalive
}

func (c *Session) hasEnded() bool {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	return c.ended
}

// accept handles a message that could be parsed. It returns false for a fatal error of the client.
func (c *Session) accept(m *dso.Message) bool {
	if m.Kind == dso.Response || m.Kind == dso.Unidirectional && !c.established {
		return false // this server sends no requests; and RFC 8490 section 5.1
	}
	request := m.Kind == dso.Request
	switch p := m.Primary(); p.Type {
	case dso.TypeKeepalive:
		if _, err := p.Keepalive(); err != nil || !request {
			return false
		}
		c.respond(m, wire.RcodeSuccess, 0)
	case dso.TypeSubscribe:
		return request && c.subscribe(m)
	case dso.TypeUnsubscribe:
		id, err := p.Unsubscribe()
		if err != nil || request {
			return false
		}
		c.unsubscribe(id)
	case dso.TypeReconfirm: // a hint for servers that got their data by multicast (RFC 8765 section 6.5)
		return !request
	case dso.TypeRetryDelay, dso.TypePush, dso.TypePadding:
		return false
	default:
		if !request {
			return false
		}
		c.respond(m, dso.RcodeTypeNI, time.Hour)
	}
	return true
}

// respond answers a request. A delay of 0 is not sent. The first success is followed by a heartbeat.
func (c *Session) respond(m *dso.Message, rcode uint8, delay time.Duration) {
	msg := dso.AppendHeader(nil, dso.Response, m.ID, rcode)
	if rcode == wire.RcodeSuccess && m.Primary().Type == dso.TypeKeepalive {
		msg = dso.AppendKeepalive(msg, timeouts())
	}
	if delay > 0 {
		msg = dso.AppendRetryDelay(msg, delay)
	}
	if _, ok := m.Find(dso.TypePadding); ok {
		msg = dso.AppendPadding(msg, 0) // RFC 8490 section 7.3
	}
	if !c.to.SendMessage(msg) || rcode != wire.RcodeSuccess {
		return
	}
	c.server.mu.Lock()
	first := !c.established
	c.established = true
	c.server.mu.Unlock()
	if first {
		c.to.Push(c.server.appendHeartbeat(nil, c.server.cfg.Now()))
	}
}

// subscribe handles a SUBSCRIBE. It returns false for a fatal error of the client.
func (c *Session) subscribe(m *dso.Message) bool {
	s := c.server
	want, err := m.Primary().Subscribe()
	if err != nil {
		c.refuse(m, &s.stats.Refused.Malformed, wire.RcodeFormErr, badDelay)
		return true
	}
	canonical := make([]byte, len(want.Name))
	wire.Canonical(canonical, want.Name)
	owner := s.cfg.Owner(canonical)
	if owner == nil || want.Class != wire.ClassIN && want.Class != wire.TypeANY {
		c.refuse(m, &s.stats.Refused.Name, wire.RcodeNotAuth, 0)
		return true
	}
	sub := subscription{typ: want.Type, class: want.Class}
	switch c.admit(m.ID, string(canonical), sub) {
	case fatal:
		return false
	case tooMany:
		c.refuse(m, &s.stats.Refused.Count, wire.RcodeRefused, refusedDelay)
	case noMemory:
		c.refuse(m, &s.stats.Refused.Memory, wire.RcodeServFail, fullDelay)
	case admitted:
		c.respond(m, wire.RcodeSuccess, 0) // before a PUSH for the name can be sent, and without a lock: it may block
		s.mu.Lock()
		sub.name = nil
		moved := !bytes.Equal(s.cfg.Owner(canonical), owner) // with the lock: see Reconfigured
		if !c.ended && !moved {
			sub.name = s.index.add(string(canonical), len(owner), subscriber{c, m.ID})
			c.subscriptions[m.ID] = sub
		}
		s.mu.Unlock()
		switch {
		case moved:
			s.end(func(other *Session) bool { return other == c })
		case sub.name != nil:
			c.pushInitial(sub.name)
		}
	}
	return true
}

// An admission is whether a subscription is accepted.
type admission uint8

const (
	admitted admission = iota
	fatal              // its ID is in use, or it is there already (RFC 8765 section 6.2.1)
	tooMany
	noMemory
)

// admit decides about a subscription. If there is no memory for it, it may end a session of a client that has more.
func (c *Session) admit(id uint16, named string, sub subscription) admission {
	s, now := c.server, c.server.cfg.Now()
	s.mu.Lock()
	sub.name = s.index.names[named]
	_, used := c.subscriptions[id]
	types, same := c.typesLocked(sub)
	var victim *Session
	verdict := admitted
	switch {
	case used, same:
		verdict = fatal
	case len(c.subscriptions) >= MaxSubscriptions, types >= maxTypes:
		verdict = tooMany
	case s.index.bytes+s.index.cost(named) <= s.cfg.Budget():
	case now.Before(c.full):
		verdict = noMemory
	default:
		if victim = s.victimLocked(c); victim == nil {
			verdict, c.full = noMemory, now.Add(fullDelay)
		} else {
			s.dropLocked(victim)
			s.stats.Ended.Memory++
		}
	}
	s.mu.Unlock()
	if victim != nil {
		victim.last(wire.RcodeServFail, fullDelay)
	}
	return verdict
}

// typesLocked returns the number of the session's subscriptions to the name of sub, and whether sub is one of them.
func (c *Session) typesLocked(sub subscription) (types int, same bool) {
	if sub.name == nil {
		return 0, false
	}
	for _, s := range sub.name.subscribers {
		if s.session == c {
			types++
			same = same || c.subscriptions[s.id] == sub
		}
	}
	return types, same
}

func (c *Session) refuse(m *dso.Message, why *uint64, rcode uint8, delay time.Duration) {
	c.server.count(why, 1)
	c.respond(m, rcode, delay)
}

// victimLocked returns the largest session of the client with most subscriptions, nil if the session's own client has as many.
func (s *Server) victimLocked(of *Session) (largest *Session) {
	clients := map[netip.Addr]int{}
	for _, sessions := range s.sessions {
		for session := range sessions {
			clients[session.client] += len(session.subscriptions)
		}
	}
	most := clients[of.client] + 1
	for _, sessions := range s.sessions {
		for session := range sessions {
			has := clients[session.client]
			if has > most || largest != nil && has == most && len(session.subscriptions) > len(largest.subscriptions) {
				most, largest = has, session
			}
		}
	}
	return largest
}

// unsubscribe ends a subscription. An ID that is not in use is ignored (RFC 8765 section 6.4.1).
func (c *Session) unsubscribe(id uint16) {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	sub, ok := c.subscriptions[id]
	if !ok {
		return
	}
	delete(c.subscriptions, id)
	c.server.index.remove(sub.name, subscriber{c, id})
	if !sub.name.has(c) {
		delete(c.marked, sub.name)
	}
}

func (c *Session) markLocked(n *name) {
	if c.marked == nil {
		c.marked = map[*name]struct{}{}
	}
	c.marked[n] = struct{}{}
	c.server.due[c] = struct{}{}
}

// pushInitial sends the records of a name that was just subscribed to, if it has any (RFC 8765 section 6.3). Names that wait go first:
// otherwise a client that subscribes to many would take the room from them, and its heartbeats would wait too.
func (c *Session) pushInitial(n *name) {
	if c.pushRecords(n) {
		return
	}
	s := c.server
	s.mu.Lock()
	c.markLocked(n)
	s.mu.Unlock()
	c.flush()
}

// pushRecords sends the records of a name. It returns false if the client does not read, or names wait.
func (c *Session) pushRecords(n *name) bool {
	c.push.Lock()
	defer c.push.Unlock()
	c.server.mu.Lock()
	waiting := len(c.marked) > 0
	c.server.mu.Unlock()
	if waiting || !c.to.HasRoom() {
		return false
	}
	b := c.server.builder(c)
	defer b.free()
	return b.addRecords(n) && b.end()
}

// flush sends the marked names. It returns false if some are left, since the client does not read.
func (c *Session) flush() (done bool) {
	s := c.server
	c.push.Lock()
	defer c.push.Unlock()
	s.mu.Lock()
	names := c.marked
	c.marked = nil
	delete(s.due, c)
	s.mu.Unlock()
	b := s.builder(c)
	defer b.free()
	for n := range names {
		if !c.to.HasRoom() || !b.add(n) { // what has no room is not built
			break
		}
	}
	b.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.ended:
		return true
	case len(b.sent) == len(names):
		c.waits = time.Time{}
		return true
	case c.waits.IsZero():
		c.waits = s.cfg.Now()
	}
	for _, n := range b.sent {
		delete(names, n)
	}
	for n := range names {
		if n.has(c) {
			c.markLocked(n)
		}
	}
	return len(c.marked) == 0
}

// vouch sends the heartbeat that is due, unless names were marked since flush.
func (c *Session) vouch(heartbeat []byte) {
	s := c.server
	s.mu.Lock()
	_, silent := s.silent[c]
	silent = silent && len(c.marked) == 0
	s.mu.Unlock()
	if !silent || !c.to.Push(heartbeat) {
		return
	}
	s.mu.Lock()
	delete(s.silent, c)
	s.mu.Unlock()
}

// endIfSlow ends a session whose marked names have waited too long.
func (c *Session) endIfSlow(now time.Time) {
	c.server.mu.Lock()
	late := !c.waits.IsZero() && now.Sub(c.waits) >= slow && c.server.dropLocked(c)
	if late {
		c.server.stats.Ended.Slow++
	}
	c.server.mu.Unlock()
	if late {
		c.to.Abort()
	}
}

// abort ends the session, and counts that; nil: it is counted elsewhere.
func (c *Session) abort(counter *uint64) {
	c.server.mu.Lock()
	if c.server.dropLocked(c) && counter != nil {
		*counter++
	}
	c.server.mu.Unlock()
	c.to.Abort()
}

// last ends the session with a Retry Delay. dropLocked was called before.
func (c *Session) last(rcode uint8, delay time.Duration) {
	c.to.Last(dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Unidirectional, 0, rcode), delay))
}
