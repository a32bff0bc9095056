// SPDX-License-Identifier: Apache-2.0

package intercept_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/intercept"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A Client is the origin of a query.
type Client uint8

// The clients.
const (
	Pod  Client = iota // behind a link of the node
	Host               // a process of the node itself
)

// String returns the name of the client.
func (c Client) String() string { return [...]string{"pod", "host"}[c] }

// A Query is a query of a client.
type Query struct {
	From    Client
	Network string // "udp" or "tcp"
	To      netip.AddrPort
	Marked  bool // like the agent's own packets; from Host only
	Test    bool // like a test of the fallback; from Pod only after MarkArriving
}

// String describes the query.
func (q Query) String() string {
	marked := ""
	switch {
	case q.Marked:
		marked = ", marked"
	case q.Test:
		marked = ", a test"
	}
	return fmt.Sprintf("%s over %s to %s%s", q.From, q.Network, q.To, marked)
}

// The names of the servers. For the fallbacks see [Fallback].
const (
	Agent    = "agent"     // listens at the Addresses, whatever the rules are
	Admin    = "admin"     // listens there at the admin port
	Service  = "service"   // answers at the Services without interception
	NoAnswer = "no server" // no answer came
)

// Fallback returns the name of the server at Layout.Fallbacks[i].
func Fallback(i int) string { return fmt.Sprintf("fallback-%d", i) }

// Server returns the name of the server at Layout.Servers[i].From, and Outside that of the agent's socket for it.
func Server(i int) string  { return fmt.Sprintf("server-%d", i) }
func Outside(i int) string { return fmt.Sprintf("outside-%d", i) }

// A Layout has the addresses of the servers of a Node.
type Layout struct {
	Addresses []netip.Addr     // the agent's, one of each family
	Services  []netip.Addr     // one of each family
	Servers   []rules.Redirect // other servers, two of each family
	Fallbacks []netip.AddrPort // two of each family at least
	Port      uint16           // of Agent and Service
	Admin     uint16
	Lease     time.Duration // a short lease that the backend can express
}

// A Node is a node with clients and servers. It has no rules at the start.
type Node interface {
	// Layout returns the addresses of the servers. They never change.
	Layout() Layout

	// Open returns the backend of one more agent on the node. The test closes it.
	Open(tb testing.TB) intercept.Backend

	// Dial opens a client port for queries to one address.
	Dial(tb testing.TB, q Query) Conn

	// Tracked returns how many connections of queries to the address conntrack tracks.
	Tracked(tb testing.TB, to netip.AddrPort) int

	// Elapse lets time pass.
	Elapse(d time.Duration)

	// AddToLink adds addresses to a link of the node.
	AddToLink(tb testing.TB, addrs []netip.Addr)

	// AddCilium adds what Cilium may have there: rules that exempt the fallbacks' packets from conntrack, and a host firewall
	// that drops the fallbacks' replies unless the query left with the host mark.
	AddCilium(tb testing.TB)

	// MarkArriving gives all packets that arrive the mark of a test of the fallback, as another program may.
	MarkArriving(tb testing.TB)

	// Flush removes all rules, as another program may.
	Flush(tb testing.TB)
}

// A Conn is a client's UDP socket or TCP session.
type Conn interface {
	// Ask returns the name of the server that answered. After the end of a session it
	// returns [NoAnswer].
	Ask() string

	// Close closes it. It may be called more than once.
	Close()
}
