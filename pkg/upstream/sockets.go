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
type sockets struct {
	*common
	addr     netip.AddrPort
	count    *counters
	inboxes  sync.Pool     // of *inbox: a socket holds one only while it reads
	readers  chan struct{} // one for each inbox in use: an inbox is large, and the sockets are many
	outboxes sync.Pool     // of *outbox

	mu      sync.Mutex // guards the fields below, and those of socket and packet where they say so
	gone    *sync.Cond // tells that a socket was closed
	due     *outbox    // what Flush is to send; the first takes more
	slots   [socketSlots]*socket
	held    int       // sockets open or opening
	begun   uint64    // sockets opened, ever
	retired bool      // keep no socket without a query
	left    bool      // the upstream is no longer one: take no query
	random  [512]byte // from common's rand
	drawn   int       // octets of random that are used up
}

// A packet is what sockets note about a try, guarded by their lock.
type packet struct {
	socket    *socket // whose table it is in; nil: in none
	id        uint16
	sent      []byte    // the query as it was sent
	room      [104]byte // of sent, but for long names
	malformed error     // what was wrong with the last answer that could not be read
}

func newSockets(c *common, addr netip.AddrPort, count *counters) *sockets {
	u := &sockets{common: c, addr: addr, count: count}
	u.readers = make(chan struct{}, 2*runtime.GOMAXPROCS(0)) // while one waits for a lock, another may go on
	u.gone = sync.NewCond(&u.mu)
	u.inboxes.New = func() any { return newInbox() }
	u.outboxes.New = func() any { return newOutbox() }
	u.drawn = len(u.random)
	return u
}

// carry takes the query's place in a socket's table and puts it into the outbox. Where the batch finds its slot empty
// it opens a socket, which never waits for anybody.
func (u *sockets) carry(t *try, batch *wire.SendBatch) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left {
		return errLeft
	}
	if u.due == nil || !u.due.takesLocked() {
		s, err := u.socketLocked()
		if err != nil {
			return err
		}
		if u.due == nil {
			batch.Add(u)
		}
		o := u.outboxes.Get().(*outbox)
		o.socket, o.next = s, u.due
		u.due = o
	}
	return u.addLocked(t, u.due)
}

// addLocked gives the try an ID and puts it into the outbox and into the table of the outbox's socket.
func (u *sockets) addLocked(t *try, o *outbox) error {
	id, err := u.freeLocked(o.socket)
	if err != nil {
		return err
	}
	var letters uint64
	if t.mixed {
		drawn, err := u.drawLocked(8)
		if err != nil {
			return err
		}
		letters = binary.LittleEndian.Uint64(drawn)
	}
	msg := o.add(t.query, id)
	if t.mixed {
		wire.RandomCase(msg, letters)
	}
	p := &t.ride.packet
	p.socket, p.id, p.malformed = o.socket, id, nil
	p.sent = append(p.room[:0], msg...)
	o.socket.tries[id] = t
	return nil
}

// freeLocked draws an ID that no other query on the socket has.
func (u *sockets) freeLocked(s *socket) (uint16, error) {
	for range idDraws {
		b, err := u.drawLocked(2)
		if err != nil {
			return 0, err
		}
		id := binary.LittleEndian.Uint16(b)
		if s.tries[id] == nil {
			return id, nil
		}
	}
	return 0, fmt.Errorf("finding a free ID: %w", errLimit)
}

// drawLocked gives n random octets, 8 at most, which are good until the next call.
func (u *sockets) drawLocked(n int) ([]byte, error) {
	if u.drawn+n > len(u.random) {
		if _, err := io.ReadFull(u.rand, u.random[:]); err != nil {
			return nil, fmt.Errorf("drawing random numbers: %w", err)
		}
		u.drawn = 0
	}
	u.drawn += n
	return u.random[u.drawn-n : u.drawn], nil
}
