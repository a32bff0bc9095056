// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"errors"
	"time"

	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A watchEvent is what a resolver's watch gets: a change, or without an object a bookmark.
type watchEvent struct {
	rv     uint64
	object int // -1: a bookmark
	fact   fact
	at     time.Time // at the API server
}

// A modelResolver is a server of the central resolver.
type modelResolver struct {
	w       *world
	id      int
	lag     time.Duration
	paused  time.Time // the watch delivers nothing until then
	mute    time.Time // no question on a session is answered until then
	queue   []watchEvent
	history [][]fact // of each object, what was known since when
	newest  uint64
	upTo    uint64
	full    time.Time // all changes until then are known
	conns   []*modelConn
}

func (w *world) addResolver() {
	res := &modelResolver{w: w, id: len(w.resolvers), lag: w.upTo(2 * time.Second), history: make([][]fact, len(w.objects)), full: w.now}
	for i, f := range w.objects {
		res.history[i] = []fact{f}
	}
	w.resolvers = append(w.resolvers, res)
	w.repeat(500*time.Millisecond+w.upTo(10*time.Second), func() { res.feed(watchEvent{rv: w.rv, object: -1, at: w.now}) })
}

// feed delivers an event of the watch, in order.
func (res *modelResolver) feed(e watchEvent) {
	res.queue = append(res.queue, e)
	res.w.after(res.lag+res.w.upTo(50*time.Millisecond), res.pump)
}

func (res *modelResolver) pump() {
	w := res.w
	if w.now.Before(res.paused) {
		w.after(res.paused.Sub(w.now), res.pump)
		return
	}
	for len(res.queue) > 0 && !w.now.Before(res.queue[0].at.Add(res.lag)) {
		e := res.queue[0]
		res.queue = res.queue[1:]
		res.upTo, res.full = e.rv, e.at
		if e.object < 0 {
			continue
		}
		res.newest = e.rv
		known := e.fact
		known.since = w.now
		res.history[e.object] = append(res.history[e.object], known)
		for _, conn := range res.conns {
			conn.changed(e.object)
		}
	}
}

func (res *modelResolver) pause(d time.Duration) { res.paused = res.w.now.Add(d) }

// now returns what the resolver knows of an object.
func (res *modelResolver) knows(object int) fact {
	return res.history[object][len(res.history[object])-1]
}

// at returns what the resolver knew at a time.
func (res *modelResolver) at(object int, at time.Time) (known fact) {
	for _, f := range res.history[object] {
		if f.since.After(at) {
			break
		}
		known = f
	}
	return known
}

// A modelConn is a connection of the agent to a resolver, with the resolver's state of its session.
type modelConn struct {
	w      *world
	res    *modelResolver
	s      *session
	client *Client
	delay  time.Duration
	silent time.Time   // nothing arrives until then
	queues [2][]packet // on their way to the resolver, and to the agent
	views  bool        // Views are sent
	open   bool
	refuse time.Time // no SUBSCRIBE may be sent until then

	names  map[uint16][]byte // subscriptions
	due    map[int]bool      // objects of which a PUSH is due
	pushed map[int]uint32    // version of the last PUSH of an object
}

// connect opens a session with any resolver.
func (w *world) connect() {
	res := w.resolvers[w.r.IntN(len(w.resolvers))]
	c := &modelConn{
		w: w, res: res, client: w.client, delay: w.upTo(30 * time.Millisecond), open: true,
		names: map[uint16][]byte{}, due: map[int]bool{}, pushed: map[int]uint32{},
	}
	c.s = w.client.connected(modelAddr(res.id))
	w.conn = c
	res.conns = append(res.conns, c)
	c.watchDeadline()
	if w.chance(10) {
		c.silence(w.upTo(6 * time.Second))
	}
}

// watchDeadline ends the session when it is silent for too long.
func (c *modelConn) watchDeadline() {
	at := c.s.deadline()
	c.w.after(at.Sub(c.w.now), func() {
		switch {
		case c.w.conn != c:
		case c.s.deadline().After(at):
			c.watchDeadline()
		default:
			c.reset("silent")
		}
	})
}

// reset ends the connection.
func (c *modelConn) reset(why string) {
	w := c.w
	c.open = false
	for i, other := range c.res.conns {
		if other == c {
			c.res.conns = append(c.res.conns[:i:i], c.res.conns[i+1:]...)
			break
		}
	}
	if w.conn != c {
		return
	}
	w.conn = nil
	w.tally[why]++
	c.client.lost(c.s, why)
	w.after(w.upTo(reconnectDelay), w.connect)
}

// silence loses all packets for a time. The resolver ends a session that does not read for 5 s.
func (c *modelConn) silence(d time.Duration) {
	c.silent = c.w.now.Add(d)
	if d > 5*time.Second {
		c.w.after(5*time.Second, func() { c.open = false })
		c.w.after(d, func() { c.reset("reset after silence") })
	}
}

// send delivers a message, in order: to the resolver if to is 0, else to the agent.
func (c *modelConn) send(to int, do func()) {
	after := c.delay + c.w.upTo(20*time.Millisecond)
	if c.w.chance(2) {
		after += c.w.upTo(200 * time.Millisecond)
	}
	c.queues[to] = append(c.queues[to], packet{c.w.now.Add(after), do})
	c.w.after(after, func() { c.pump(to) })
}

// pump delivers the first message to one side, if it is due.
func (c *modelConn) pump(to int) {
	switch w := c.w; {
	case !c.open || w.conn != c || len(c.queues[to]) == 0 || c.queues[to][0].due.After(w.now):
	case c.silent.After(w.now): // later packets are sent again
		w.after(c.silent.Sub(w.now)+w.upTo(20*time.Millisecond), func() { c.pump(to) })
	default:
		do := c.queues[to][0].do
		c.queues[to] = c.queues[to][1:]
		do()
		w.after(w.upTo(time.Millisecond), func() { c.pump(to) })
	}
}

// A packet is a message on its way.
type packet struct {
	due time.Time
	do  func()
}

// flush sends what the agent has written.
func (c *modelConn) flush() {
	select {
	case <-c.s.wake:
	default:
		return
	}
	for out := c.s.takeOut(); len(out) > 0; {
		size := int(out[0])<<8 | int(out[1])
		msg := out[2 : 2+size]
		out = out[2+size:]
		if m, err := dso.Parse(msg); err == nil && m.Primary().Type == dso.TypeSubscribe && c.w.now.Before(c.refuse) {
			c.w.fail("SUBSCRIBE before %s", c.refuse)
		}
		c.send(0, func() { c.serve(msg) })
	}
}

// write sends a message to the agent. The versions are those of the names in a PUSH.
func (c *modelConn) write(msg []byte, versions map[string]uint32) {
	c.send(1, func() { c.deliver(bytes.Clone(msg), versions) })
}

// deliver has the agent receive a message.
func (c *modelConn) deliver(msg []byte, versions map[string]uint32) {
	w := c.w
	for name := range versions {
		if c.s.names[name] == nil {
			delete(versions, name) // the agent has unsubscribed
		}
	}
	wasLive := c.client.session == c.s
	var batch wire.SendBatch
	// What a message reports counts once it was processed, and before anything else is.
	w.odd = !dso.IsDSO(msg) && msg[2]&2 != 0
	err := c.s.receive(msg, &batch)
	w.odd = false
	for name, version := range versions {
		if object := objectOf([]byte(name)); version > w.received[object] {
			w.received[object], w.receivedAt[object], w.receivedOn[object] = version, w.now, c
		}
	}
	batch.Flush()
	if err != nil {
		w.fail("receiving: %v", err)
	}
	if live := c.client.session == c.s; live && !wasLive && len(c.client.seen) > 0 {
		w.tally["failed over"]++
	} else if !live && !c.s.viewed.IsZero() {
		w.tally["behind, waited"]++
	}
	if w.hasty && len(versions) > 0 && w.chance(20) {
		c.reset("between PUSH and View")
	}
}

// serve is the resolver's part: it processes a message of the agent.
func (c *modelConn) serve(msg []byte) {
	w := c.w
	if !dso.IsDSO(msg) {
		c.answer(msg)
		return
	}
	m, err := dso.Parse(msg)
	if err != nil {
		w.fail("the agent sent %x: %v", msg, err)
	}
	respond := func(rcode uint8, add func([]byte) []byte) {
		c.write(add(dso.AppendHeader(nil, dso.Response, m.ID, rcode)), nil)
	}
	nothing := func(dst []byte) []byte { return dst }
	switch primary := m.Primary(); primary.Type {
	case dso.TypeKeepalive:
		respond(0, func(dst []byte) []byte {
			return dso.AppendKeepalive(dst, dso.Keepalive{Inactivity: dso.Never, Interval: time.Minute})
		})
		if !c.views {
			c.views = true
			c.view()
		}
	case dso.TypeSubscribe:
		sub, err := primary.Subscribe()
		if err != nil {
			w.fail("%v", err)
		}
		if rcode := w.refuse[string(sub.Name)]; rcode != 0 {
			if rcode != wire.RcodeRefused {
				respond(uint8(rcode), nothing)
				return
			}
			msg := dso.AppendRetryDelay(dso.AppendHeader(nil, dso.Response, m.ID, uint8(rcode)), 3*time.Second)
			c.send(1, func() {
				c.deliver(msg, nil)
				c.refuse = w.now.Add(3 * time.Second)
			})
			return
		}
		for _, other := range c.names {
			if bytes.Equal(other, sub.Name) {
				w.fail("%s is subscribed to twice", sub.Name)
			}
		}
		c.names[m.ID] = sub.Name
		object := objectOf(sub.Name)
		if f := c.res.knows(object); f.exists { // the records at this time
			var push dso.Push
			push.Begin(nil)
			push.Add(dso.Change{Name: sub.Name, Type: wire.TypeTXT, Class: wire.ClassIN, TTL: 5, Data: []byte{0}})
			defer func() { c.write(push.End(), nil) }()
		}
		respond(0, nothing)
	case dso.TypeUnsubscribe:
		id, err := primary.Unsubscribe()
		if err != nil || c.names[id] == nil {
			w.fail("UNSUBSCRIBE of %d: %v", id, err)
		}
		delete(c.names, id)
		w.tally["unsubscribed"]++
	default:
		w.fail("a message of type %x", primary.Type)
	}
}

// answer answers a question with what the resolver knows now, some time later.
func (c *modelConn) answer(query []byte) {
	w := c.w
	if w.now.Before(c.res.mute) {
		return
	}
	object := objectOf(wire.QueryName(query))
	f := c.res.knows(object)
	msg := f.message(query, c.res.id)
	if w.chance(1) {
		msg[2] |= 2 // truncated: no answer for the agent
		w.tally["truncated"]++
	}
	took := time.Duration(0)
	if w.chance(50) {
		took = w.upTo(80 * time.Millisecond)
	}
	w.after(took, func() {
		if c.pushed[object] > f.version {
			w.tally["pushed, overtaken"]++
		}
		c.write(msg, nil)
	})
}

// view sends a View every two seconds.
func (c *modelConn) view() {
	if !c.open {
		return
	}
	w, res := c.w, c.res
	age := w.now.Sub(res.full).Truncate(time.Millisecond) // as it is in the message
	msg := dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{Inactivity: dso.Never, Interval: time.Minute})
	msg = dso.AppendView(msg, dso.View{Age: age, Kinds: []dso.Versions{{Newest: res.newest, UpTo: res.upTo}}})
	c.send(1, func() {
		c.deliver(msg, nil)
		if age <= modelMaxAge && c.client.session == c.s {
			w.youngView = w.now
		}
	})
	w.after(2*time.Second, c.view)
}

// changed has a PUSH for an object written soon.
func (c *modelConn) changed(object int) {
	if len(c.due) == 0 {
		c.w.after(c.w.upTo(50*time.Millisecond), c.push)
	}
	c.due[object] = true
}

func (c *modelConn) push() {
	var push dso.Push
	push.Begin(nil)
	versions := map[string]uint32{}
	for object := range c.due {
		f := c.res.knows(object)
		for _, name := range c.names {
			if objectOf(name) != object {
				continue
			}
			push.RemoveName(name)
			if f.exists {
				push.Add(dso.Change{Name: name, Type: wire.TypeTXT, Class: wire.ClassIN, TTL: 5, Data: []byte{0}})
			}
			versions[string(name)] = f.version
			c.pushed[object] = f.version
		}
	}
	clear(c.due)
	if len(versions) > 0 {
		c.write(push.End(), versions)
	}
}

// A modelPool asks any resolver.
type modelPool world

var errModelPool = errors.New("no answer")

// Ask implements Asker.
func (p *modelPool) Ask(query []byte, _ time.Time, to wire.AnswerReceiver, _ *wire.SendBatch) {
	w := (*world)(p)
	name := wire.QueryName(query)
	if q, ok := to.(*question); ok && q.repeats >= maxRepeats {
		w.tally["exhausted"]++
	} else if s := w.client.session; s != nil && !s.slow && !w.odd && !w.now.Before(s.refuseEnd) {
		if n := s.names[string(name)]; n == nil && len(s.order) < w.client.limits.names || n != nil && n.acked {
			w.fail("the pool was asked for %s beside a session", name)
		}
	}
	res, asked := w.resolvers[w.r.IntN(len(w.resolvers))], w.now
	w.after(w.upTo(30*time.Millisecond), func() {
		f := res.knows(objectOf(name))
		w.after(w.upTo(300*time.Millisecond), func() {
			var batch wire.SendBatch
			defer batch.Flush()
			if w.chance(5) {
				to.Answered(nil, errModelPool, &batch)
				return
			}
			var m wire.Message
			if err := m.Parse(f.message(query, res.id)); err != nil {
				w.fail("%v", err)
			}
			w.poolAsked = asked
			if q, ok := to.(*question); ok {
				w.exhausted = q.repeats >= maxRepeats || !w.now.Before(q.until)
			}
			to.Answered(&m, nil, &batch)
		})
	})
}
