// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// connections tracks the connections of a Server. Their number is bounded, but a new connection is usually accepted:
// the Server closes an idle one for it. Probes must always get in, because the kubelet restarts an agent that
// refuses them.
//
// At most maxPages pages are rendered at once, so that clients that read slowly or not at all use only part
// of the memory. At that bound, too, a newer request replaces an older one.
type connections struct {
	mu    sync.Mutex // guards the fields below
	open  map[net.Conn]*connection
	from  map[netip.Addr]int // connections per client
	pages int                // pages being rendered or written
	turn  uint64             // sequence number of the latest change
	count struct {
		refused uint64 // connections closed because of maxConns
		busy    uint64 // requests beyond maxPages
	}
}

// A connection is an open connection and its state.
type connection struct {
	conn     net.Conn
	from     netip.Addr // zero value: over the unix socket
	local    bool       // client on this host
	turn     uint64     // value of connections.turn at this connection's latest change
	activity uint8      // what the server does for the connection
	end      func()     // ends the context of its handshake and its requests
}

// close ends a connection at once. Close of a TLS connection may wait for a client that does not read.
func (o *connection) close() {
	o.end()
	conn := o.conn
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close() // the goroutine that reads or writes it gets an error
}

// The activities.
const (
	idle      = iota // idle, sending a request, or reading a small reply
	rendering        // rendering a page: must not be closed
	writing          // writing a rendered page
)

func newConnections() *connections {
	return &connections{open: make(map[net.Conn]*connection), from: make(map[netip.Addr]int)}
}

// accept registers a connection, or closes it if there is no room. The context of its requests holds it.
func (c *connections) accept(ctx context.Context, conn net.Conn) context.Context {
	ctx, end := context.WithCancel(ctx)
	n := &connection{conn: conn, from: address(conn.RemoteAddr()), end: end}
	n.local = !n.from.IsValid() || isLocal(n.from, address(conn.LocalAddr()))
	if out := c.admit(n); out != nil {
		out.close()
	}
	return context.WithValue(ctx, c, n)
}

// admit registers a connection and returns the one to close for it, possibly itself.
func (c *connections) admit(n *connection) (out *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= maxConns {
		c.count.refused++
		if out = c.evictableLocked(func(o *connection) bool { return o.activity != rendering }); out == nil {
			return n
		}
		c.removeLocked(out)
	}
	c.open[n.conn] = n
	c.from[n.from]++
	c.setLocked(n, idle)
	return out
}

// evictableLocked returns the first connection to close among those that fit, nil if none fits. Clients on
// this host come last, then clients with the most connections come first, then the lowest turn comes first.
func (c *connections) evictableLocked(fits func(*connection) bool) (least *connection) {
	for _, o := range c.open {
		if fits(o) && (least == nil || c.before(o, least)) {
			least = o
		}
	}
	return least
}

func (c *connections) before(a, b *connection) bool {
	if a.local != b.local {
		return b.local
	}
	if x, y := c.from[a.from], c.from[b.from]; x != y {
		return x > y
	}
	return a.turn < b.turn
}

func (c *connections) removeLocked(o *connection) {
	o.end()
	delete(c.open, o.conn)
	if c.from[o.from]--; c.from[o.from] == 0 {
		delete(c.from, o.from)
	}
}

// remove forgets a closed connection.
func (c *connections) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.open[conn]; o != nil {
		c.removeLocked(o)
	}
}

// touch notes that a connection is in use.
func (c *connections) touch(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.open[conn]; o != nil {
		c.setLocked(o, o.activity)
	}
}

// begin reports whether a page may be rendered for a connection, which may be nil. Each true needs a call of end.
// It may close another connection to make room. Until that connection's handler calls end, there is one page more.
func (c *connections) begin(o *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pages >= maxPages {
		c.count.busy++
		slow := c.evictableLocked(func(o *connection) bool { return o.activity == writing })
		if slow == nil {
			return false
		}
		c.removeLocked(slow)
		slow.close()
	}
	c.pages++
	c.setLocked(o, rendering)
	return true
}

// set notes what the server does for a connection.
func (c *connections) set(o *connection, activity uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setLocked(o, activity)
}

// end notes that a page is sent or abandoned.
func (c *connections) end(o *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pages--
	c.setLocked(o, idle)
}

func (c *connections) setLocked(o *connection, activity uint8) {
	if o != nil {
		c.turn++
		o.turn, o.activity = c.turn, activity
	}
}

// stats returns the counters.
func (c *connections) stats() (refused, busy uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count.refused, c.count.busy
}

// of returns the connection of a request, nil if unknown.
func (c *connections) of(r *http.Request) *connection {
	o, _ := r.Context().Value(c).(*connection)
	return o
}

// address returns the IP address of one end of a connection, invalid for a unix socket.
func address(end net.Addr) netip.Addr {
	tcp, ok := end.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}

// isLocal reports whether a client at this address is on this host: at a loopback address, or at the server's address. No
// other host can do that: the second packet of its handshake would not leave this host. It may relay for other hosts.
func isLocal(client, server netip.Addr) bool {
	return client.IsLoopback() || client.IsValid() && client == server
}
