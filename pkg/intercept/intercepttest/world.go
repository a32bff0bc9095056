// SPDX-License-Identifier: Apache-2.0

package intercepttest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
)

// A Client is where a query comes from.
type Client uint8

// The clients.
const (
	Pod  Client = iota // behind a link of the node
	Host               // a process of the node itself
)

// String names the client.
func (c Client) String() string { return [...]string{"pod", "host"}[c] }

// A Query is what a client asks, and how.
type Query struct {
	From    Client
	Network string // "udp" or "tcp"
	To      netip.AddrPort
	Marked  bool // as the agent's own packets are; from Host only
}

// String tells what is asked.
func (q Query) String() string {
	marked := ""
	if q.Marked {
		marked = ", marked"
	}
	return fmt.Sprintf("%s over %s to %s%s", q.From, q.Network, q.To, marked)
}

// Who answers. Of the fallbacks see [Fallback].
const (
	Agent   = "agent"   // listens at the Addresses, and goes on answering there whatever the rules are
	Admin   = "admin"   // listens there at the admin port
	Service = "service" // answers at the Services while nobody intercepts
	Nobody  = "nobody"  // no answer came
)

// Fallback is the name of the server at Layout.Fallbacks[i].
func Fallback(i int) string { return fmt.Sprintf("fallback-%d", i) }

// A Layout says where the servers of a World are.
type Layout struct {
	Addresses []netip.Addr     // the agent's, one of each family
	Services  []netip.Addr     // one of each family
	Fallbacks []netip.AddrPort // two of each family at least
	Port      uint16           // of Agent and Service
	Admin     uint16
	Lease     time.Duration // a short lease, as the backend can count it
}

// A World is a node with clients and servers, and without rules at the start.
type World interface {
	// Layout says where the servers are. It is the same all the time.
	Layout() Layout

	// Open makes the backend of one more agent in the node. The test closes it.
	Open(tb testing.TB) intercept.Backend

	// Dial gets a client a port of its own for queries to one address.
	Dial(tb testing.TB, q Query) Conn

	// Tracked is how many connections of queries to the address are tracked.
	Tracked(tb testing.TB, to netip.AddrPort) int

	// Elapse lets the time pass.
	Elapse(d time.Duration)

	// Flush takes all rules away as another program does.
	Flush(tb testing.TB)
}

// A Conn is a client's: a UDP socket or a TCP session.
type Conn interface {
	// Ask returns who answered. A session that ended stays at [Nobody].
	Ask() string

	// Close ends it. More than once is no harm.
	Close()
}
