// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// visits are the connections of a server. They are bounded in number, and yet a new
// one is let in as a rule: for it, one is closed that nothing is being done for. A
// probe has to get in, whoever else comes: the kubelet that is turned away restarts
// the agent.
//
// At most maxPages pages are made at once, so that those who take no page, slowly or
// not at all, have but a part of the memory. There, too, the newer one comes first.
type visits struct {
	mu    sync.Mutex // guards what follows
	open  map[net.Conn]*visit
	from  map[netip.Addr]int // how many of them each client has
	pages int                // being made or written
	turn  uint64             // the last one given
	count struct {
		refused uint64 // connections
		busy    uint64 // requests
	}
}

// A visit is one connection.
type visit struct {
	conn  net.Conn
	from  netip.Addr // the zero value: over the unix socket
	here  bool       // from this machine
	turn  uint64     // when what is done for it last changed
	doing doing
}

// doing is what is being done for a connection.
type doing uint8

const (
	nothing doing = iota // it is idle, sends a request, or takes the reply of a small page
	making               // a page: it must not be closed
	writing              // of a page that was made
)

func newVisits() *visits {
	return &visits{open: make(map[net.Conn]*visit), from: make(map[netip.Addr]int)}
}

// come lets a connection in, or closes it if there is no room to be made. The context
// of its requests has its visit.
func (v *visits) come(ctx context.Context, conn net.Conn) context.Context {
	n := &visit{conn: conn, from: address(conn.RemoteAddr())}
	n.here = !n.from.IsValid() || n.from.IsLoopback() || n.from == address(conn.LocalAddr())
	if out := v.admit(n); out != nil {
		_ = out.conn.Close() // whoever reads or writes it finds out
	}
	return context.WithValue(ctx, visitKey{}, n)
}

// admit counts a connection in and gives the one that has to go for it, maybe itself.
func (v *visits) admit(n *visit) (out *visit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.open) >= maxConns {
		v.count.refused++
		if out = v.leastLocked(func(o *visit) bool { return o.doing != making }); out == nil {
			return n
		}
		v.forgetLocked(out)
	}
	v.open[n.conn] = n
	v.from[n.from]++
	v.nowLocked(n, nothing)
	return out
}

// leastLocked is the one of those that fit that is the first to go: who is on this
// machine goes last, then who has the most connections goes first, then who has been
// as it is for longest. It is nil if none fits.
func (v *visits) leastLocked(fits func(*visit) bool) (least *visit) {
	for _, o := range v.open {
		if fits(o) && (least == nil || v.before(o, least)) {
			least = o
		}
	}
	return least
}

func (v *visits) before(a, b *visit) bool {
	if a.here != b.here {
		return b.here
	}
	if x, y := v.from[a.from], v.from[b.from]; x != y {
		return x > y
	}
	return a.turn < b.turn
}

func (v *visits) forgetLocked(o *visit) {
	delete(v.open, o.conn)
	if v.from[o.from]--; v.from[o.from] == 0 {
		delete(v.from, o.from)
	}
}

// leave forgets a connection that has ended.
func (v *visits) leave(conn net.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if o := v.open[conn]; o != nil {
		v.forgetLocked(o)
	}
}

// seen notes that a connection is in use.
func (v *visits) seen(conn net.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if o := v.open[conn]; o != nil {
		v.nowLocked(o, o.doing)
	}
}

// begin tells whether a page may be made for a visit, which may be nil. Each true needs
// an end.
func (v *visits) begin(o *visit) bool {
	slow, ok := v.take(o)
	if slow != nil {
		_ = slow.conn.Close()
	}
	return ok
}

// take counts a page in, and gives the visit that has to go for it, if one has to. Its
// handler finds out in a moment and counts itself out; until then there is one more.
func (v *visits) take(o *visit) (slow *visit, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pages >= maxPages {
		v.count.busy++
		if slow = v.leastLocked(func(o *visit) bool { return o.doing == writing }); slow == nil {
			return nil, false
		}
		v.forgetLocked(slow)
	}
	v.pages++
	v.nowLocked(o, making)
	return slow, true
}

// write says that the page is made and goes out.
func (v *visits) write(o *visit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nowLocked(o, writing)
}

// end says that a page is written, or was given up.
func (v *visits) end(o *visit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pages--
	v.nowLocked(o, nothing)
}

// hold keeps a connection open for what is bounded in other ways, until release.
func (v *visits) hold(o *visit) (release func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nowLocked(o, making)
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.nowLocked(o, nothing)
	}
}

func (v *visits) nowLocked(o *visit, d doing) {
	if o != nil {
		v.turn++
		o.turn, o.doing = v.turn, d
	}
}

// stats are the counts since the start.
func (v *visits) stats() (refused, busy uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.count.refused, v.count.busy
}

// visitKey is the key of a connection's visit in the contexts of its requests.
type visitKey struct{}

// visitOf is whose request it is, nil if that is not known.
func visitOf(r *http.Request) *visit {
	o, _ := r.Context().Value(visitKey{}).(*visit)
	return o
}

// address is the IP address of an end, invalid for one of a unix socket.
func address(end net.Addr) netip.Addr {
	tcp, ok := end.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}
