// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"syscall"
)

// pending holds the queries that one socket has sent, by ID.
type pending struct {
	mu     sync.Mutex // guards all below
	byID   map[uint16]int
	order  []int // indexes of queries; entries before oldest are done
	oldest int
	sent   bool // no further query follows
}

// add assigns the next ID to a query.
func (p *pending) add(query int) (id uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id = uint16(len(p.order))
	p.byID[id] = query
	p.order = append(p.order, query)
	return id
}

// take removes the query with the ID of an answer. last reports that no query is left and none follows.
func (p *pending) take(id uint16) (query int, ok, last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	query, ok = p.byID[id]
	delete(p.byID, id)
	return query, ok, p.sent && len(p.byID) == 0
}

// end records that no further query follows, and reports whether all are answered.
func (p *pending) end() (answered bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = true
	return len(p.byID) == 0
}

// oneUDP prepares a client with one port.
func (m *Meter) oneUDP(load, rate int) (run func(), err error) {
	dialed, err := m.config.Host.Dial(context.Background(), "udp", m.config.Target.String())
	if err != nil {
		return nil, err
	}
	conn, p := dialed.(*net.UDPConn), &pending{byID: map[uint16]int{}}
	if raw, err := conn.SyscallConn(); err == nil {
		_ = raw.Control(enlarge)
	}
	return func() {
		received := make(chan struct{})
		go func() { // joined below
			defer close(received)
			m.receive(conn, p)
		}()
		m.pace(rate, func(n int) {
			for range n {
				m.sendUDP(conn, load, p)
			}
		})
		deadline := now()
		if !p.end() {
			deadline = deadline.Add(m.config.Timeout + m.config.Linger)
		}
		_ = conn.SetReadDeadline(deadline)
		<-received
		_ = conn.Close()
	}, nil
}

// sendUDP sends one query.
func (m *Meter) sendUDP(conn *net.UDPConn, load int, p *pending) {
	i := m.begin(load)
	id := p.add(i)
	query := newQuery(id, m.name(i))
	_, err := conn.Write(query)
	if errors.Is(err, syscall.ECONNREFUSED) { // the error is that of an earlier query; nothing was sent
		m.refuse(p)
		_, err = conn.Write(query)
	}
	if err != nil {
		m.fail(i, err)
	}
}

// receive records answers until the last one, or the socket's deadline.
func (m *Meter) receive(conn *net.UDPConn, p *pending) {
	msg := make([]byte, 4096)
	for {
		n, err := conn.Read(msg)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			m.refuse(p)
		case err != nil:
			return
		case n > 1:
			i, ok, last := p.take(binary.BigEndian.Uint16(msg))
			if ok {
				m.answer(i, msg[:n])
			}
			if last {
				return
			}
		}
	}
}

// refuse records that a host refused a query. The socket does not say which: it takes the oldest unanswered one.
func (m *Meter) refuse(p *pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.oldest < len(p.order); p.oldest++ {
		i := p.order[p.oldest]
		m.mu.Lock()
		o := m.outcomes[i]
		m.mu.Unlock()
		if o.Result == Lost && now().Sub(o.Sent) < m.config.Timeout {
			m.end(i, Refused, "")
			return
		}
	}
}
