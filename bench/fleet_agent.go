// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	vouched   = 5 * time.Second  // an agent leaves a server that sent no heartbeat for so long
	respond   = 10 * time.Second // and one that does not send the first
	comeBack  = 5 * time.Second  // at most, before the next connection
	batchSize = 50               // subscriptions between two barriers
	barrierID = 0x7fff
	queryIDs  = 0x8000 // and above: the question for the name with the number below
)

// A fleetName is a name that agents hold, and its right answer.
type fleetName struct {
	wire []byte

	mu      sync.Mutex // guards the rest
	holders map[int]struct{}
	want    string           // in wire form behind its length: an address; empty: NXDOMAIN
	changed time.Time        // when the API server had the change; zero: it does not have it yet
	watched time.Time        // when a watch of this program had it; zero: it has not
	right   map[int]struct{} // the holders that got the right answer since
	add     func(rightAnswer)
}

// A rightAnswer is the time from a change to an agent's right answer: from the API server's reply, and from the event of a watch.
type rightAnswer struct{ reply, watch time.Duration }

// expect makes another answer the right one, before the change. add is called for each right answer; nil: they are not counted.
func (n *fleetName) expect(want string, add func(rightAnswer)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.want, n.changed, n.watched, n.right, n.add = want, time.Time{}, time.Time{}, map[int]struct{}{}, add
}

// seen says that a watch of this program has the change.
func (n *fleetName) seen(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watched.IsZero() {
		n.watched = now
	}
}

// written says that the API server has the change. Holders that were quicker than its reply count with 0.
func (n *fleetName) written(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = now
	for range n.right {
		n.add(rightAnswer{})
	}
}

// missing is the number of holders without the right answer.
func (n *fleetName) missing() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.holders) - len(n.right)
}

// answered judges an agent's answer.
func (n *fleetName) answered(agent int, msg []byte, now time.Time) (right bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.want == "" {
		right = msg[3]&0xf == dns.RcodeNameError
	} else {
		right = bytes.Contains(msg, []byte(n.want))
	}
	if _, before := n.right[agent]; right && !before && n.add != nil {
		n.right[agent] = struct{}{}
		if !n.changed.IsZero() {
			since := rightAnswer{reply: now.Sub(n.changed)}
			if !n.watched.IsZero() {
				since.watch = now.Sub(n.watched)
			}
			n.add(since)
		}
	}
	return right
}

// A fleet is the simulated agents: a socket and a decoder each. What a real agent answers from its cache, they do not have.
type fleet struct {
	dial  func(ctx context.Context, agent, server int) (net.Conn, error)
	names map[string]*fleetName // in wire form

	bytes, refused, sessions atomic.Int64

	tasks sync.WaitGroup
	mu    sync.Mutex    // guards the rest
	since time.Time     // when the latest phase began
	ready events        // the time since then of the agents that have subscribed to all names and have a right answer for each
	each  events        // likewise, since the start of each session
	left  int           // agents that are not ready
	done  chan struct{} // closed when there are none
}

// begin begins a phase, at whose end as many agents are ready again.
func (f *fleet) begin(agents int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since, f.ready, f.each, f.left, f.done = time.Now(), events{}, events{}, agents, make(chan struct{})
}

// await waits for the end of the phase.
func (f *fleet) await(ctx context.Context, limit time.Duration) (events, error) {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-f.done:
		return f.ready, nil
	case <-ctx.Done():
		return events{}, ctx.Err()
	case <-timeout.C:
		f.mu.Lock()
		defer f.mu.Unlock()
		return events{}, fmt.Errorf("%d agents are not subscribed after %s, %d subscriptions were refused", f.left, limit, f.refused.Load())
	}
}

// isReady counts an agent that is ready, whose session began at since.
func (f *fleet) isReady(since, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ready.latencies, f.each.latencies = append(f.ready.latencies, now.Sub(f.since)), append(f.each.latencies, now.Sub(since))
	if f.left--; f.left == 0 {
		close(f.done)
	}
}

// A fleetAgent is one agent.
type fleetAgent struct {
	fleet  *fleet
	number int
	names  []*fleetName
	index  map[*fleetName]uint16
	server int // to which it connects

	// Of the session.
	out         []byte // to be written
	subscribing int    // names whose SUBSCRIBE was sent
	subscribed  int    // names whose SUBSCRIBE was answered
	right       map[uint16]struct{}
	ready       bool
}

// start starts an agent with its first connection after a delay. It runs until ctx ends.
func (f *fleet) start(ctx context.Context, number int, names []*fleetName, delay time.Duration) {
	a := &fleetAgent{fleet: f, number: number, names: names, index: map[*fleetName]uint16{}}
	for i, n := range names {
		a.index[n] = uint16(i)
		n.mu.Lock()
		n.holders[number] = struct{}{}
		n.mu.Unlock()
	}
	f.tasks.Go(func() {
		for retry.Sleep(ctx, delay) == nil {
			_ = a.session(ctx) // however it ended, the next one is with the other server
			a.server, delay = 1-a.server, rand.N(comeBack)
		}
	})
}

// session has one session.
func (a *fleetAgent) session(ctx context.Context) error {
	began := time.Now()
	conn, err := a.fleet.dial(ctx, a.number, a.server)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	a.fleet.sessions.Add(1)
	a.out, a.subscribing, a.subscribed, a.right, a.ready = nil, 0, 0, map[uint16]struct{}{}, false
	a.barrier()
	in := bufio.NewReader(conn)
	var msg []byte
	err = conn.SetReadDeadline(time.Now().Add(respond))
	for err == nil {
		if in.Buffered() == 0 && len(a.out) > 0 {
			if _, err = conn.Write(a.out); err != nil {
				break
			}
			a.out = a.out[:0]
		}
		if msg, err = readMessage(in, msg); err != nil {
			break
		}
		a.fleet.bytes.Add(int64(2 + len(msg)))
		if dso.IsDSO(msg) {
			err = a.handle(conn, msg)
		} else {
			err = a.answer(msg)
		}
		if err == nil && !a.ready && a.subscribed == len(a.names) && len(a.right) == len(a.names) {
			a.ready = true
			a.fleet.isReady(began, time.Now())
		}
	}
	return err
}

// readMessage reads a message of a stream into buf, which may grow.
func readMessage(in io.Reader, buf []byte) ([]byte, error) {
	buf = slices.Grow(buf[:0], 512)[:2]
	if _, err := io.ReadFull(in, buf); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(buf))
	buf = slices.Grow(buf[:0], size)[:size]
	_, err := io.ReadFull(in, buf)
	return buf, err
}

// send appends a message to those to be written.
func (a *fleetAgent) send(msg []byte) {
	a.out = append(binary.BigEndian.AppendUint16(a.out, uint16(len(msg))), msg...)
}

// barrier sends a request whose response comes after those of the requests before.
func (a *fleetAgent) barrier() {
	a.send(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Request, barrierID, 0), dso.Keepalive{Inactivity: time.Minute, Interval: time.Minute}))
}

// ask asks for the address of a name.
func (a *fleetAgent) ask(i uint16) {
	msg := binary.BigEndian.AppendUint16(nil, queryIDs|i)
	msg = append(append(msg, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0), a.names[i].wire...)
	a.send(append(msg, 0, byte(dns.TypeA), 0, byte(wire.ClassIN)))
}

// handle handles a message with the opcode of DNS stateful operations.
func (a *fleetAgent) handle(conn net.Conn, msg []byte) error {
	m, err := dso.Parse(msg)
	switch {
	case err != nil:
		return err
	case m.Kind == dso.Response && m.Rcode != 0:
		a.fleet.refused.Add(1)
		return nil
	case m.Kind == dso.Response && m.ID == barrierID:
		for range min(batchSize, len(a.names)-a.subscribing) {
			i := uint16(a.subscribing)
			a.send(dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, 1+i, 0), dso.Subscription{Name: a.names[i].wire, Type: dns.TypeANY, Class: wire.ClassIN}))
			a.ask(i)
			if a.subscribing++; a.subscribing == len(a.names) || a.subscribing%batchSize == 0 {
				a.barrier()
			}
		}
		return nil
	case m.Kind == dso.Response:
		a.subscribed++
		return nil
	}
	switch m.Primary().Type {
	case dso.TypePush:
		return m.Changes(func(c dso.Change) bool {
			if c.TTL == dso.TTLRemoveCollective { // without it the records are those at the time of the SUBSCRIBE
				if i, ok := a.index[a.fleet.names[string(c.Name)]]; ok {
					a.ask(i)
				}
			}
			return true
		})
	case dso.TypeKeepalive:
		if _, ok := m.Find(dso.TypeView); ok {
			return conn.SetReadDeadline(time.Now().Add(vouched))
		}
	case dso.TypeRetryDelay:
		return errors.New("the server ends the session")
	default:
	}
	return nil
}

// answer handles the answer to a question.
func (a *fleetAgent) answer(msg []byte) error {
	i := binary.BigEndian.Uint16(msg) &^ queryIDs
	if len(msg) < wire.HeaderLen || int(i) >= len(a.names) {
		return errors.New("an answer to no question")
	}
	if a.names[i].answered(a.number, msg, time.Now()) {
		a.right[i] = struct{}{}
	}
	return nil
}

func newFleetName(name string) *fleetName {
	buf := make([]byte, wire.MaxName)
	size, err := dns.PackDomainName(name, buf, 0, nil, false)
	if err != nil {
		panic("a name of this program: " + err.Error())
	}
	return &fleetName{wire: buf[:size], holders: map[int]struct{}{}, right: map[int]struct{}{}}
}
