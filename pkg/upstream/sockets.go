// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/nodecache/node-cache/pkg/wire"
)

// Bounds of the UDP sockets to one upstream.
const (
	socketSlots    = 128             // sockets that take queries
	maxSockets     = 2 * socketSlots // and those included that only wait for what is on its way
	socketBatches  = 64              // batches of queries that leave from one port
	socketQueries  = 1024            // on their way through one socket
	socketAge      = time.Second     // how long a socket takes queries at least,
	socketAgeRange = 2 * time.Second // and how much longer at most
	idDraws        = 8               // after so many one is free, but for a chance of 1 in 2^48
)

// sockets are the UDP sockets to one upstream. Queries that come together leave together, in one system call, through
// one socket that is drawn for them. Each has an ID of its own: who wants to forge its answer must guess both port and
// ID, and the letters of the name where these are mixed.
//
//	carry ─ ID, letters ─ the socket's table ─ outbox ─ Flush ─► upstream
//	                            │                                  │
//	try.carried ◄── whole? ◄── ID, question ◄──── reader ◄─────────┘
//
// A socket takes queries for a few seconds and a few batches, and is closed with its last one. After a query that
// found no answer it takes no more: where something on the way swallows what comes from a port, as a stale entry of
// connection tracking does, the next try is heard.
//
// One lock guards all of it and is never held while the network is at work.
type socketPool struct {
	*common
	addr     netip.AddrPort
	count    *counters
	inboxes  sync.Pool     // of *inbox: a socket holds one only while it reads
	readers  chan struct{} // one for each inbox in use: an inbox is large, and the sockets are many
	outboxes sync.Pool     // of *outbox

	mu          sync.Mutex // guards the fields below, and those of socket and packet where they say so
	cond        *sync.Cond // tells that a socket was closed
	outboxQueue *outbox    // what Flush is to send; the first takes more
	slots       [socketSlots]*socket
	openSockets int       // sockets open or opening
	opened      uint64    // sockets opened, ever
	noIdle      bool      // keep no socket without a query
	closed      bool      // the upstream is no longer one: take no query
	randBuf     [512]byte // from common's rand
	randUsed    int       // octets of random that are used up
}

// A packet is what sockets note about a try, guarded by their lock.
type datagramState struct {
	socket    *socket // whose table it is in; nil: in none
	id        uint16
	sent      []byte    // the query as it was sent
	inline    [104]byte // of sent, but for long names
	malformed error     // what was wrong with the last answer that could not be read
}

func newSocketPool(c *common, addr netip.AddrPort, count *counters) *socketPool {
	p := &socketPool{common: c, addr: addr, count: count}
	p.readers = make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // while one waits for a lock, another may go on
	p.cond = sync.NewCond(&p.mu)
	p.inboxes.New = func() any { return newInbox() }
	p.outboxes.New = func() any { return newOutbox() }
	p.randUsed = len(p.randBuf)
	return p
}

// carry takes the query's place in a socket's table and puts it into the outbox. Where the batch finds its slot empty
// it opens a socket, which never waits for anybody.
func (p *socketPool) send(a *attempt, batch *wire.SendBatch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errRemoved
	}
	if p.outboxQueue == nil || !p.outboxQueue.hasRoomLocked() {
		s, err := p.drawSocketLocked()
		if err != nil {
			return err
		}
		if p.outboxQueue == nil {
			batch.Add(p)
		}
		o := p.outboxes.Get().(*outbox)
		o.socket, o.next = s, p.outboxQueue
		p.outboxQueue = o
	}
	return p.addLocked(a, p.outboxQueue)
}

// addLocked gives the try an ID and puts it into the outbox and into the table of the outbox's socket.
func (p *socketPool) addLocked(a *attempt, o *outbox) error {
	id, err := p.freeIDLocked(o.socket)
	if err != nil {
		return err
	}
	var letters uint64
	if a.randomCase {
		drawn, err := p.randomLocked(8)
		if err != nil {
			return err
		}
		letters = binary.LittleEndian.Uint64(drawn)
	}
	msg := o.add(a.query, id)
	if a.randomCase {
		wire.RandomCase(msg, letters)
	}
	d := &a.pending.datagram
	d.socket, d.id, d.malformed = o.socket, id, nil
	d.sent = append(d.inline[:0], msg...)
	o.socket.attempts[id] = a
	return nil
}

// freeLocked draws an ID that no other query on the socket has.
func (p *socketPool) freeIDLocked(s *socket) (uint16, error) {
	for range idDraws {
		b, err := p.randomLocked(2)
		if err != nil {
			return 0, err
		}
		id := binary.LittleEndian.Uint16(b)
		if s.attempts[id] == nil {
			return id, nil
		}
	}
	return 0, fmt.Errorf("finding a free ID: %w", errLimit)
}

// drawLocked gives n random octets, 8 at most, which are good until the next call.
func (p *socketPool) randomLocked(n int) ([]byte, error) {
	if p.randUsed+n > len(p.randBuf) {
		if _, err := io.ReadFull(p.rand, p.randBuf[:]); err != nil {
			return nil, fmt.Errorf("drawing random numbers: %w", err)
		}
		p.randUsed = 0
	}
	p.randUsed += n
	return p.randBuf[p.randUsed-n : p.randUsed], nil
}
